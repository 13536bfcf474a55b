"""What a message is made of, piece by piece, and who reads it out of a model's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
