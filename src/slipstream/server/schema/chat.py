"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import BadRequestError
from slipstream.server.options import ServerOptions
from slipstream.server.schema.base import Items, RequestModel
from slipstream.server.schema.common import SharedFields, sampling_params


class Message(RequestModel):
    """`content` parts of other types than text are refused when the message is rendered."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Items[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: None = None  # what clients send back with an assistant's message
    function_call: None = None
    annotations: Items[Any] | None = None

    def plain(self) -> dict[str, Any]:
        """As a template takes it; a developer message is the system's."""
        fields = ("name", "tool_calls", "tool_call_id", "reasoning_content")
        result = {name: value for name in fields if (value := getattr(self, name)) is not None}
        content = self.content if self.content is not None or self.refusal is None else self.refusal
        if content is not None:
            result["content"] = content
        return {"role": "system" if self.role == "developer" else self.role, **result}


class ChatRequest(SharedFields):
    messages: Items[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: Items[Literal["text"]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None  # further names for the chat template, as in vLLM


def chat_params(body: ChatRequest, options: ServerOptions) -> SamplingParams:
    """Raises InvalidParamsError or BadRequestError that names the field."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise BadRequestError("contradicts max_tokens.", param="max_completion_tokens", fix="Give one of them.")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("needs logprobs: true.", param="top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= options.max_logprobs:
        raise BadRequestError(
            f"must be from 0 to {options.max_logprobs}, got {body.top_logprobs}.", param="top_logprobs"
        )
    return sampling_params(
        body,
        options,
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
