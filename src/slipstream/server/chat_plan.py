"""What a chat request asks of the engine, and how the model's text becomes parts of a message.

This is the seam for tools and structured output: they change the sampling parameters, the messages' rendering and the
parser, and the routes do not know of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import UnsupportedError
from slipstream.server.generate import Prompt
from slipstream.server.model import ServedModel
from slipstream.server.options import ServerOptions
from slipstream.server.prompts import chat_prompt
from slipstream.server.schema.chat import ChatRequest, chat_params


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call. `id` and `name` come with its first piece, `arguments` (JSON text) in pieces."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What a message gained: text, reasoning, pieces of tool calls; each may be missing."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.content or self.reasoning or self.tool_calls)


class OutputParser(Protocol):
    """Reads one completion's text in pieces, however it is cut. One parser per completion."""

    def push(self, text: str) -> MessageDelta: ...

    def finish(self) -> MessageDelta:
        """What was held back, once no text follows."""
        ...

    def finish_reason(self, reason: str) -> str:
        """The reason to report, given the engine's: "tool_calls" where the message ended in calls."""
        ...


class PlainText:
    """The text is the message."""

    def push(self, text: str) -> MessageDelta:
        return MessageDelta(content=text)

    def finish(self) -> MessageDelta:
        return MessageDelta()

    def finish_reason(self, reason: str) -> str:
        return reason


@dataclass(frozen=True, slots=True)
class ChatPlan:
    prompt: Prompt
    params: SamplingParams
    parser: Callable[[], OutputParser] = field(default=PlainText)


async def plan_chat(body: ChatRequest, model: ServedModel, options: ServerOptions) -> ChatPlan:
    """Raises a RequestError, or ChatTemplateError where the template refuses the messages."""
    _refuse_unsupported(body)
    params = chat_params(body, options)
    messages: list[dict[str, Any]] = [message.plain() for message in body.messages]
    prompt = await chat_prompt(
        model, messages, add_generation_prompt=body.add_generation_prompt, extra=body.chat_template_kwargs
    )
    return ChatPlan(prompt, params)


def _refuse_unsupported(body: ChatRequest) -> None:
    if body.tools or body.tool_choice not in (None, "none"):
        raise UnsupportedError("tools are not supported.", where="tools")
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise UnsupportedError("only the type text is supported.", where="response_format")
