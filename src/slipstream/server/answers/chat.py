"""The answer of /v1/chat/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from slipstream.server.chat_parts import MessageDelta, OutputParser, ToolCallDelta
from slipstream.server.generate import Job
from slipstream.server.logprobs import chat_logprobs
from slipstream.server.usage import Account
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatForm:
    job: Job
    model: str
    created: int
    tokenizer: Tokenizer
    parser: Callable[[], OutputParser]

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.job.id}", "object": kind, "created": self.created, "model": self.model}

    def whole(self, output: RequestOutput, account: Account, *, timings: bool) -> dict[str, Any]:
        return {
            **self.head("chat.completion"),
            "choices": [self._choice(each) for each in output.outputs],
            "usage": account.usage(),
            **({"timings": account.timings()} if timings else {}),
        }

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        parser = self.parser()
        message = Message()
        message.add(parser.push(completion.text))
        message.add(parser.finish())
        return {
            "index": completion.index,
            "message": message.as_json(),
            "logprobs": None
            if self.job.params.logprobs is None
            else chat_logprobs(self.tokenizer, completion.logprobs or ()),
            "finish_reason": parser.finish_reason(completion.finish_reason or "stop"),
            "stop_reason": completion.stop_reason,
        }


class Message:
    """A message put together from its deltas."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.tool_calls: dict[int, ToolCallDelta] = {}

    def add(self, delta: MessageDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.tool_calls:
            known = self.tool_calls.get(call.index, ToolCallDelta(call.index))
            self.tool_calls[call.index] = ToolCallDelta(
                call.index, known.arguments + call.arguments, known.id or call.id, known.name or call.name
            )

    def as_json(self) -> dict[str, Any]:
        """`content` is null where the message is nothing but tool calls."""
        result: dict[str, Any] = {
            "role": "assistant",
            "content": self.content if self.content or not self.tool_calls else None,
            "refusal": None,
        }
        if self.reasoning:
            result["reasoning_content"] = self.reasoning
        if self.tool_calls:
            result["tool_calls"] = [_whole_call(call) for _, call in sorted(self.tool_calls.items())]
        return result


class ChatStream:
    """Chunks of one job, from its deltas: the role first, the finish reason alone at the end."""

    def __init__(self, form: ChatForm) -> None:
        self._form = form
        self._parsers = [form.parser() for _ in range(form.job.num_choices)]

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(index, delta) for index in range(len(self._parsers))]

    def chunks(self, delta: OutputDelta) -> list[dict[str, Any]]:
        parser = self._parsers[delta.index]
        logprobs = chat_logprobs(self._form.tokenizer, delta.logprobs) if delta.logprobs else None
        pieces = [parser.push(delta.text)] if delta.text else []
        if delta.finish_reason is not None:
            pieces.append(parser.finish())
        shown = [_delta_json(piece) for piece in pieces if not piece.empty] or ([{}] if logprobs else [])
        chunks = [
            self._chunk(delta.index, each, logprobs=logprobs if number == 0 else None)
            for number, each in enumerate(shown)
        ]
        if delta.accepted_characters and len(shown) == 1 and shown[0].get("content") == delta.text:
            chunks[0]["choices"][0]["accepted_characters"] = delta.accepted_characters
        if delta.finish_reason is not None:
            reason = parser.finish_reason(delta.finish_reason)
            chunks.append(self._chunk(delta.index, {}, finish_reason=reason, stop_reason=delta.stop_reason))
        return chunks

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        return {**self._form.head("chat.completion.chunk"), "choices": [choice]}


def _delta_json(delta: MessageDelta) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if delta.content:
        result["content"] = delta.content
    if delta.reasoning:
        result["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        result["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
    return result


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments, **({} if call.name is None else {"name": call.name})}
    named = {} if call.id is None else {"id": call.id, "type": "function"}
    return {"index": call.index, **named, "function": function}


def _whole_call(call: ToolCallDelta) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
