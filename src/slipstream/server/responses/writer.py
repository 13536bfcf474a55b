"""A completion as output items and events of the responses API."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.engine.outputs import OutputDelta
from slipstream.errors import SlipstreamError
from slipstream.server.chat_parts import MessageDelta, OutputParser, ToolCallDelta
from slipstream.server.errors import mapped
from slipstream.server.logprobs import chat_logprobs
from slipstream.server.named_events import Event
from slipstream.server.usage import Account
from slipstream.text.tokenizer import Tokenizer


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


class ResponseWriter:
    """`base`: the response's fields that are known from the start. `on_end` gets the finished response and is not
    called for one that failed. `timings`: whether the end tells times, in a field that OpenAI's API does not have.

    Items are completed in order: a text, then calls, or whatever the parser finds.
    """

    def __init__(
        self,
        base: Mapping[str, Any],
        parser: OutputParser,
        tokenizer: Tokenizer,
        on_end: Callable[[Mapping[str, Any]], None],
        *,
        timings: bool = False,
    ) -> None:
        self._timings = timings
        self._base = base
        self._parser = parser
        self._tokenizer = tokenizer
        self._on_end = on_end
        self._output: list[dict[str, Any]] = []
        self._open = False  # whether the last item of the output is not complete yet
        self._reason = "stop"
        self._number = 0

    def opening(self) -> list[Event]:
        response = {**self._base, "status": "in_progress", "output": [], "usage": None}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def delta(self, delta: OutputDelta) -> list[Event]:
        logprobs = chat_logprobs(self._tokenizer, delta.logprobs)["content"] if delta.logprobs else []
        events = self._message(self._parser.push(delta.text), logprobs) if delta.text or logprobs else []
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason
            events += self._message(self._parser.finish(), [])
        return events

    def closing(self, account: Account) -> list[Event]:
        complete = self._reason == "stop"
        events = self._close("completed" if complete else "incomplete")
        response = self._response(account)
        self._on_end(response)
        return [*events, self._event("response.completed" if complete else "response.incomplete", response=response)]

    def failed(self, error: SlipstreamError, account: Account) -> list[Event]:
        found = mapped(error)
        response = {
            **self._response(account),
            "status": "failed",
            "error": {"code": found.code or found.type, "message": str(error)},
        }
        return [self._event("response.failed", response=response)]

    def whole(self, delta: OutputDelta, account: Account) -> dict[str, Any]:
        """The response of a completion that came in one piece."""
        self.delta(delta)
        self._close("completed" if self._reason == "stop" else "incomplete")
        response = self._response(account)
        self._on_end(response)
        return response

    def _response(self, account: Account) -> dict[str, Any]:
        reason = {"length": "max_output_tokens"}.get(self._reason, self._reason)
        complete = self._reason == "stop"
        return {
            **self._base,
            "status": "completed" if complete else "incomplete",
            "incomplete_details": None if complete else {"reason": reason},
            "output": self._output,
            "usage": {
                "input_tokens": account.prompt_tokens,
                "input_tokens_details": {"cached_tokens": account.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": account.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": account.prompt_tokens + account.completion_tokens,
            },
            **({"timings": account.timings()} if self._timings else {}),
        }

    def _message(self, delta: MessageDelta, logprobs: list[dict[str, Any]]) -> list[Event]:
        events: list[Event] = []
        if delta.content or logprobs:
            events += self._text(delta.content, logprobs)
        for call in delta.tool_calls:
            events += self._call(call)
        return events

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        events: list[Event] = []
        if not self._open or self._output[-1]["type"] != "message":
            if not text:
                return []
            events = self._close("completed")
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {"type": "message", "id": new_id("msg"), "role": "assistant"}
            item |= {"status": "in_progress", "content": []}
            events.append(self._add(item))
            item["content"] = [part]
            events.append(self._item_event("response.content_part.added", content_index=0, part=dict(part)))
        shown = self._output[-1]["content"][0]
        shown["text"] += text
        shown["logprobs"] += logprobs
        events.append(self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs))
        return events

    def _call(self, call: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id is not None:
            events = self._close("completed")
            item = {"type": "function_call", "id": new_id("fc"), "call_id": call.id, "name": call.name}
            events.append(self._add({**item, "arguments": "", "status": "in_progress"}))
        if call.arguments:
            self._output[-1]["arguments"] += call.arguments
            events.append(self._item_event("response.function_call_arguments.delta", delta=call.arguments))
        return events

    def _add(self, item: dict[str, Any]) -> Event:
        self._output.append(item)
        self._open = True
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _close(self, status: str) -> list[Event]:
        """Complete the open item, if there is one."""
        if not self._open:
            return []
        self._open = False
        item = self._output[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            events = [
                self._item_event("response.output_text.done", content_index=0, **text),
                self._item_event("response.content_part.done", content_index=0, part=part),
            ]
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._item_event("response.function_call_arguments.done", **done)]
        last = self._event("response.output_item.done", output_index=len(self._output) - 1, item=dict(item))
        return [*events, last]

    def _item_event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}
