"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.errors import InvalidParamsError
from slipstream.lean import dataclass


@dataclass(frozen=True)
class StopResult:
    """`text` may be shown; `matched` is the stop string that ends the output here, if one does."""

    text: str
    matched: str | None = None


class StopChecker:
    """Ends a text at the first of its stop strings, however the text is cut into pieces.

    The match that is complete first wins; of two that are complete with the same character, the longer one. A piece's
    end that may be the beginning of a stop string is held back until it is known not to be, so that no part of a match
    is ever shown. With `include_in_output` the text ends with the stop string, otherwise right before it.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        if isinstance(stop, str):
            raise InvalidParamsError("must be a list of strings, not one string.", where="stop")
        for index, string in enumerate(stop):
            if not isinstance(string, str) or not string:
                raise InvalidParamsError(f"must be a non-empty string, not {string!r}.", where=f"stop[{index}]")
        # Longest first: of several that begin or end at one place, the first one found is the one wanted.
        self._stop = tuple(sorted(set(stop), key=lambda string: (-len(string), string)))
        self._include = include_in_output
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """Add `text`. After a match everything is dropped and the match reported again."""
        if self._matched is not None:
            return StopResult("", self._matched)
        text = self._held + text
        ends = [(at + len(string), string) for string in self._stop if (at := text.find(string)) >= 0]
        if ends:
            end, matched = min(ends, key=lambda found: (found[0], -len(found[1])))
            self._held, self._matched = "", matched
            return StopResult(text[: end if self._include else end - len(matched)], matched)
        safe = len(text) - self._undecided(text)
        self._held = text[safe:]
        return StopResult(text[:safe])

    def flush(self) -> StopResult:
        """The text held back, once it is known that no more follows."""
        held, self._held = self._held, ""
        return StopResult(held, self._matched)

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for string in self._stop:
            for length in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:length]):
                    longest = length
                    break
        return longest
