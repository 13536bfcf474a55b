"""The longest suffix of a growing token sequence that occurred in it before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

BYTES_PER_TOKEN = 160  # about, in text; 30 in a loop, 300 where few different tokens come at random


class SuffixAutomaton:
    """Suffix automaton over token ids, extended one token at a time, amortised O(1) each and O(n) memory.

    (Blumer et al., The smallest automaton recognizing the subwords of a text, 1985.) Every state stands for substrings
    that end at the same places. The suffix link of the state of the whole sequence is its longest suffix that also
    ends somewhere earlier; that state's `recent` end is where its continuation is read. `recent` is refreshed for one
    state per token, the one that a lookup would read now, so it may be older than the last occurrence, but never wrong.

    Most states are left by one token only, which is kept in two arrays; a dictionary for each would take five times as
    much memory.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        # By state; 32 bits, since there are at most two states per token. -1 is no token, no state or no index.
        self._token = array("i")  # the first one that left it
        self._next = array("i")  # where that leads
        self._more: dict[int, dict[int, int]] = {}  # where other tokens lead
        self._link = array("i")
        self._length = array("i")
        self._recent = array("i")  # index of the last token of an occurrence that ends before the newest token
        self._last = self._new_state(0, -1, -1)
        self._pending = -1  # the state whose `recent` becomes the newest token once that is no longer the newest
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        first, following, more = self._token, self._next, self._more
        position = len(self.tokens)
        self.tokens.append(token)
        if self._pending > 0:
            self._recent[self._pending] = position - 1
        state = self._last
        current = self._last = self._new_state(self._length[state] + 1, 0, position)
        target = -1
        while state >= 0:
            known = first[state]
            if known == token:
                target = following[state]
                break
            if known < 0:
                first[state], following[state] = token, current
            else:
                others = more.get(state)
                if others is None:
                    more[state] = {token: current}
                else:
                    target = others.get(token, -1)
                    if target >= 0:
                        break
                    others[token] = current
            state = self._link[state]
        if target >= 0:
            self._link[current] = self._linked(state, token, target)
        self._pending = self._link[current]

    def longest(self, min_length: int, max_length: int) -> tuple[int, int] | None:
        """The first of `matches`, without looking for the others."""
        state = self._link[self._last] if self.tokens else 0
        if state <= 0 or self._length[state] < min_length:
            return None
        return min(self._length[state], max_length), self._recent[state]

    def matches(self, min_length: int, max_length: int) -> list[tuple[int, int]]:
        """(length, end) of suffixes that occurred before, longest first: tokens[end - length + 1 : end + 1] equals the
        sequence's last `length` tokens and `end` lies before the last token. Ends are distinct; a match longer than
        `max_length` counts as one of `max_length`; those shorter than `min_length` are left out."""
        found: list[tuple[int, int]] = []
        ends: set[int] = set()
        state = self._link[self._last] if self.tokens else 0
        while state > 0 and self._length[state] >= min_length:
            end = self._recent[state]
            if end not in ends:
                ends.add(end)
                found.append((min(self._length[state], max_length), end))
            state = self._link[state]
        return found

    def continuation(self, end: int, count: int) -> tuple[int, ...]:
        """The `count` tokens after index `end`; past the sequence's own end it goes on as it did since `end`, so that a
        loop is drafted as a loop."""
        tokens, period = self.tokens, len(self.tokens) - 1 - end
        if period >= count:
            return tuple(tokens[end + 1 : end + 1 + count])
        return tuple(tokens[end + 1 + i % period] for i in range(count))

    def _new_state(self, length: int, link: int, recent: int) -> int:
        self._token.append(-1)
        self._next.append(-1)
        self._link.append(link)
        self._length.append(length)
        self._recent.append(recent)
        return len(self._link) - 1

    def _linked(self, state: int, token: int, target: int) -> int:
        """The state of the longest suffix that ends with the transition to `target`; split off it where needed."""
        if self._length[state] + 1 == self._length[target]:
            return target
        clone = self._new_state(self._length[state] + 1, self._link[target], self._recent[target])
        self._token[clone], self._next[clone] = self._token[target], self._next[target]
        others = self._more.get(target)
        if others is not None:
            self._more[clone] = others.copy()
        self._link[target] = clone
        while state >= 0:
            if self._token[state] == token:
                if self._next[state] != target:
                    break
                self._next[state] = clone
            else:
                others = self._more.get(state)
                if others is None or others.get(token) != target:
                    break
                others[token] = clone
            state = self._link[state]
        return clone
