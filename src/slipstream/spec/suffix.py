"""The longest suffix of a growing token sequence that occurred in it before."""

from __future__ import annotations

from collections.abc import Iterable


class SuffixAutomaton:
    """Suffix automaton over token ids, extended one token at a time, amortised O(1) each and O(n) memory.

    (Blumer et al., The smallest automaton recognizing the subwords of a text, 1985.) Every state stands for substrings
    that end at the same places. The suffix link of the state of the whole sequence is its longest suffix that also
    ends somewhere earlier; that state's `recent` end is where its continuation is read. `recent` is refreshed for one
    state per token, the one that a lookup would read now, so it may be older than the last occurrence, but never wrong.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._recent: list[int] = [-1]  # index of the last token of an occurrence that ends before the newest token
        self._last = 0
        self._pending = -1  # the state whose `recent` becomes the newest token once that is no longer the newest
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token)
        if self._pending > 0:
            self._recent[self._pending] = position - 1
        current = self._new_state(self._length[self._last] + 1, position)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = current
            state = self._link[state]
        self._link[current] = 0 if state < 0 else self._linked(state, token)
        self._last = current
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

    def _new_state(self, length: int, recent: int) -> int:
        self._next.append({})
        self._link.append(0)
        self._length.append(length)
        self._recent.append(recent)
        return len(self._next) - 1

    def _linked(self, state: int, token: int) -> int:
        """The state of the longest suffix that ends with the transition; split off its state where needed."""
        target = self._next[state][token]
        if self._length[state] + 1 == self._length[target]:
            return target
        clone = self._new_state(self._length[state] + 1, self._recent[target])
        self._next[clone] = dict(self._next[target])
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        return clone
