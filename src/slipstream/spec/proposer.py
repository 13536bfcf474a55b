"""What a proposer is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from slipstream.lean import dataclass

TokenProbs: TypeAlias = tuple[tuple[int, float], ...]
"""A distribution over token ids: (id, probability > 0), each id once, the sum 1; other ids have probability 0."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A chain of tokens that may follow a sequence.

    `evidence` says how good the proposal is expected to be, in a proposer's own classes from 0 to 99 (for n-grams the
    length of the match): acceptance is tracked apart for every class. A proposer with a `cost` has one class, 0,
    because whether to ask it is decided before it has answered.

    `probs`: for each token the distribution that it was drawn from, independently of the request's seed; None: the
    tokens were chosen (greedily, or by a lookup), which is a distribution with all of its mass on them. Rejection
    sampling needs it to be exact; verification by Gumbel noise does not read it.
    """

    tokens: tuple[int, ...] = ()
    evidence: int = 0
    probs: tuple[TokenProbs, ...] | None = None

    def cut(self, length: int) -> Draft:
        """Its first `length` tokens."""
        if length >= len(self.tokens):
            return self
        return Draft(self.tokens[:length], self.evidence, None if self.probs is None else self.probs[:length])


NOTHING = Draft()


class Proposer(Protocol):
    """Keeps what it needs about each open sequence, under a key that the caller chooses.

    `name` shows in decisions and metrics. One call of `propose` drafts for all rows of a step together.
    """

    @property
    def name(self) -> str: ...

    def open(self, key: str, tokens: Sequence[int]) -> None:
        """A sequence begins with `tokens`. Its key must not be open."""
        ...

    def extend(self, key: str, tokens: Sequence[int]) -> None:
        """`tokens` were appended to the sequence; they are final. What was drafted and is not among them was refused:
        a proposer that keeps state about its own drafts (KV of a draft model) catches up here or when it is asked."""
        ...

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        """For each (key, at most so many tokens), in order; a shorter or empty draft is always allowed."""
        ...

    def close(self, key: str) -> None:
        """Forget the sequence; nothing happens if it is not open."""
        ...

    def cost(self, num_rows: int, num_tokens: int) -> float:
        """Estimated seconds of one call that drafts `num_tokens` for each of `num_rows`. 0: a lookup; it is always
        asked. Otherwise it is asked for as many tokens as pay, this cost included, and not at all where none do."""
        ...
