"""What followed the same tokens in answers that have ended: n-grams across requests, of one group each."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Sequence

from slipstream.spec.proposer import NOTHING, Draft

SHARED = 50  # the evidence of a draft from the store: this and the length of its match, in powers of two
SHORTEST = 3  # tokens of a match, at least; two occur everywhere
DEPTH = 8  # of the latest occurrences so many are compared
LEAD = 16  # tokens of the prompt that are kept in front of an answer, so that its beginning is found too
BYTES_PER_TOKEN = 140  # about, where n-grams seldom come twice; less in other text

_END = -1  # behind each answer; no token
_BITS = 32  # of a token in a key
_SLACK = 1024  # tokens that are gone but not given back yet


def is_shared(evidence: int) -> bool:
    """Whether a draft of this evidence came from a store."""
    return SHARED <= evidence < 2 * SHARED


class AnswerStore:
    """The last answers, `capacity` tokens of all groups together; when there are more, the oldest answer goes first.

    Nothing of one group is ever compared with or returned to another: each has an index of its own. That is a chain of
    occurrences for every n-gram of `min_match` tokens, latest first (as LZ77 coders have them); a match is extended
    backwards from there, up to `max_match` tokens. Adding and dropping a token takes constant time, looking up at most
    `DEPTH` comparisons. Raises ValueError for a capacity below 1.
    """

    def __init__(self, capacity: int, min_match: int = SHORTEST, max_match: int = 32) -> None:
        if capacity < 1:
            raise ValueError(f"a store of {capacity} tokens holds nothing.")
        self.capacity = capacity
        self._min_match, self._max_match = min_match, max(min_match, max_match)
        self._groups: dict[Hashable, _Index] = {}
        self._order: deque[tuple[Hashable, int]] = deque()  # answers, oldest first: group, length
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Held now; an answer counts for one more than it has."""
        return self._num_tokens

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    def add(self, group: Hashable, tokens: Sequence[int]) -> None:
        """Of an answer longer than the store its end is kept; one in which nothing could be found is not."""
        tokens = tokens[max(0, len(tokens) - self.capacity + 1) :]
        if len(tokens) <= self._min_match:
            return
        length = len(tokens) + 1
        while self._num_tokens + length > self.capacity:
            self._drop()
        index = self._groups.get(group)
        if index is None:
            index = self._groups[group] = _Index(self._min_match)
        index.add(tokens)
        self._order.append((group, length))
        self._num_tokens += length

    def draft(self, group: Hashable, tokens: Sequence[int], count: int) -> Draft:
        """At most `count` tokens that followed the longest match with the end of `tokens`, of equal ones the latest;
        empty if there is none."""
        index = self._groups.get(group)
        if index is None or count < 1:
            return NOTHING
        length, following = index.find(tokens, self._max_match, count)
        return Draft(following, SHARED + length.bit_length()) if following else NOTHING

    def _drop(self) -> None:
        group, length = self._order.popleft()
        index = self._groups[group]
        index.drop(length)
        self._num_tokens -= length
        if not len(index):
            del self._groups[group]


class _Index:
    """Answers of one group, one behind the other, each with an end mark. Positions count from the first ever added."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._mask = (1 << _BITS * width) - 1
        self._tokens = array("i")
        self._back = array("i")  # by token: how far back the n-gram that ends here ended before; 0: nowhere
        self._latest: dict[int, int] = {}  # n-gram -> position of its last token
        self._base = 0  # position of the first one in the arrays
        self._gone = 0  # so many of the first ones in the arrays are dropped

    def __len__(self) -> int:
        return len(self._tokens) - self._gone

    def add(self, tokens: Sequence[int]) -> None:
        latest, back, mask, width = self._latest, self._back, self._mask, self._width
        position = self._base + len(self._tokens)
        key = 0
        for seen, token in enumerate(tokens, 1):
            key = (key << _BITS | token) & mask
            if seen >= width:
                back.append(position - latest.get(key, position))
                latest[key] = position
            else:
                back.append(0)
            position += 1
        back.append(0)
        self._tokens.extend(tokens)
        self._tokens.append(_END)

    def drop(self, count: int) -> None:
        """The first answer, which has so many tokens, its end mark included."""
        start, key = self._gone, 0
        for at, token in enumerate(self._tokens[start : start + count - 1], start):
            key = (key << _BITS | token) & self._mask
            if self._latest.get(key) == self._base + at:
                del self._latest[key]
        self._gone += count
        if self._gone > _SLACK + len(self) // 4:
            del self._tokens[: self._gone]
            del self._back[: self._gone]
            self._base += self._gone
            self._gone = 0

    def find(self, tokens: Sequence[int], longest: int, count: int) -> tuple[int, tuple[int, ...]]:
        """(length of the match, what followed it); (0, ()) if there is none."""
        width, own = self._width, self._tokens
        if len(tokens) < width:
            return 0, ()
        key = 0
        for token in tokens[len(tokens) - width :]:
            key = key << _BITS | token
        at = self._latest.get(key, -1) - self._base
        best, best_at = 0, -1
        for _ in range(DEPTH):
            if at < self._gone:
                break
            if own[at + 1] != _END:
                length = width
                most = min(longest, len(tokens), at - self._gone + 1)
                while length < most and own[at - length] == tokens[-1 - length]:
                    length += 1
                if length > best:
                    best, best_at = length, at
                if length >= longest:
                    break
            back = self._back[at]
            if not back:
                break
            at -= back
        if best_at < 0:
            return 0, ()
        following = own[best_at + 1 : best_at + 1 + count].tolist()
        if _END in following:
            following = following[: following.index(_END)]
        return best, tuple(following)
