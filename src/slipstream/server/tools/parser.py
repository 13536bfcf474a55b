"""The text of a message, cut at marks into content and calls, however the text comes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.server.chat_parts import MessageDelta
from slipstream.server.tools.calls import CallReader, Gathered, Status


class MarkedCalls:
    """Content until a mark; behind a mark of `begins` one call, read by a new reader; marks of `ends` are passed over
    once there was a call. `bare` reads a call that begins the message with that character and no mark.

    Whitespace before, between and behind calls is no content. What turns out to be no call is content, mark included.
    """

    def __init__(
        self,
        out: Gathered,
        reader: Callable[[], CallReader],
        *,
        begins: Sequence[str],
        ends: Sequence[str] = (),
        bare: str | None = None,
        parallel: bool = True,
    ) -> None:
        self._out = out
        self._reader = reader
        self._begins = tuple(begins)
        self._ends = tuple(ends)
        self._bare = bare
        self._parallel = parallel
        self._held = ""  # whitespace and what may become a mark
        self._raw = ""  # of the call under way, to be content if it is none
        self._call: CallReader | None = None
        self._shown = False  # content was given since the start or the last call
        self._before = 0  # calls before the one under way

    def push(self, text: str) -> MessageDelta:
        for char in text:
            self._feed(char)
        return self._out.take()

    def finish(self) -> MessageDelta:
        if self._call is not None and self._out.num_calls == self._before:
            self._show(self._raw)  # cut off before it was a call
        elif not self._ending():
            self._show(self._held)
        self._call, self._raw, self._held = None, "", ""
        return self._out.take()

    def finish_reason(self, reason: str) -> str:
        return "tool_calls" if reason == "stop" and self._out.num_calls else reason

    def _feed(self, char: str) -> None:
        if self._call is not None:
            self._raw += char
            status = self._call.feed(char, self._out)
            if status is Status.FAILED:
                raw, self._raw, self._call = self._raw, "", None
                first = len(raw) - len(raw.lstrip()) + 1
                self._show(raw[:first])
                for each in raw[first:]:
                    self._feed(each)
            elif status is Status.DONE:
                self._raw, self._call, self._shown = "", None, False
            return
        self._held += char
        while self._held and not self._decide():
            self._show(self._held[0])
            self._held = self._held[1:]

    def _decide(self) -> bool:
        """False if the first character held is content."""
        rest = self._held.lstrip()
        if not rest or not self._parallel_left():
            return not rest
        if self._out.num_calls and rest in self._ends:
            self._held = ""
            return True
        if rest in self._begins:
            self._start("")
            return True
        if self._bare is not None and rest == self._bare and not self._shown:
            self._start(rest)
            return True
        marks = (*self._begins, *(self._ends if self._out.num_calls else ()))
        return any(mark.startswith(rest) for mark in marks)

    def _ending(self) -> bool:
        """Behind a call, whether what is held is whitespace or the beginning of an end mark: the text was cut off."""
        return self._out.num_calls > 0 and (
            not self._held.strip() or any(mark.startswith(self._held.strip()) for mark in self._ends)
        )

    def _parallel_left(self) -> bool:
        return self._parallel or not self._out.num_calls

    def _start(self, first: str) -> None:
        self._raw, self._held = self._held, ""
        self._call, self._before = self._reader(), self._out.num_calls
        for char in first:
            self._call.feed(char, self._out)

    def _show(self, text: str) -> None:
        if text and self._parallel_left():
            self._shown = self._shown or bool(text.strip())
            self._out.text(text)
