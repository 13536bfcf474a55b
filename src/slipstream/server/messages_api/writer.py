"""A completion as Anthropic's content blocks and events."""

from __future__ import annotations

import json
from typing import Any

from slipstream.engine.outputs import OutputDelta
from slipstream.errors import SlipstreamError
from slipstream.server.chat_parts import MessageDelta, OutputParser
from slipstream.server.messages_api.errors import anthropic_error
from slipstream.server.named_events import Event
from slipstream.server.usage import Account

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """`timings`: whether the end tells times, in a field that Anthropic's API does not have."""

    def __init__(
        self, message_id: str, model: str, prompt_tokens: int, parser: OutputParser, *, timings: bool = False
    ) -> None:
        self._timings = timings
        self._parser = parser
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""  # of the call under way, JSON
        self._open = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self._prompt_tokens = prompt_tokens
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}

    def opening(self) -> list[Event]:
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [{"type": "message_start", "message": {**self._head, **empty}}]

    def delta(self, delta: OutputDelta) -> list[Event]:
        events = self._message(self._parser.push(delta.text)) if delta.text else []
        if delta.finish_reason is not None:
            events += self._message(self._parser.finish())
            events += self._close()
            reason = self._parser.finish_reason(delta.finish_reason)
            by_sequence = reason == "stop" and isinstance(delta.stop_reason, str)
            self._stop_reason = "stop_sequence" if by_sequence else _STOP_REASONS.get(reason, "end_turn")
            self._stop_sequence = str(delta.stop_reason) if by_sequence else None
        return events

    def closing(self, account: Account) -> list[Event]:
        end = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [
            {"type": "message_delta", "delta": end, "usage": _usage(account), **self._timings_of(account)},
            {"type": "message_stop"},
        ]

    def failed(self, error: SlipstreamError, account: Account) -> list[Event]:
        return [anthropic_error(error)]

    def whole(self, delta: OutputDelta, account: Account) -> dict[str, Any]:
        """The message of a completion that came in one piece."""
        self.delta(delta)
        end = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return {
            **self._head,
            "content": self._blocks,
            **end,
            "usage": _usage(account),
            **self._timings_of(account),
        }

    def _timings_of(self, account: Account) -> dict[str, Any]:
        return {"timings": account.timings()} if self._timings else {}

    def _message(self, delta: MessageDelta) -> list[Event]:
        events: list[Event] = []
        if delta.content:
            if not self._open or self._blocks[-1]["type"] != "text":
                events += self._start({"type": "text", "text": ""})
            self._blocks[-1]["text"] += delta.content
            events.append(self._block_delta({"type": "text_delta", "text": delta.content}))
        for call in delta.tool_calls:
            if call.id is not None:
                events += self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            if call.arguments:
                self._arguments += call.arguments
                events.append(self._block_delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def _start(self, block: dict[str, Any]) -> list[Event]:
        events = self._close()
        self._blocks.append(block)
        self._open, self._arguments = True, ""
        start = {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}
        return [*events, start]

    def _close(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"] = _object(self._arguments)
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _block_delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}


def _usage(account: Account) -> dict[str, Any]:
    """What the prefix cache had is counted apart from the input, as Anthropic does."""
    return {
        "input_tokens": account.prompt_tokens - account.cached_tokens,
        "cache_read_input_tokens": account.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": account.completion_tokens,
    }


def _object(text: str) -> dict[str, Any]:
    """Arguments that were cut off are no object: then there are none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
