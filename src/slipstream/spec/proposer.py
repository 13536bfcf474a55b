"""What a proposer is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a sequence.

    `evidence` says how good the proposal is expected to be, in a proposer's own classes (for n-grams the length of the
    match): acceptance is tracked apart for every class.
    """

    tokens: tuple[int, ...] = ()
    evidence: int = 0


NOTHING = Draft()


class Proposer(Protocol):
    """Keeps what it needs about each open sequence, under a key that the caller chooses.

    `name` shows in metrics. `cost`: estimated seconds for one call that drafts `num_tokens` for each of `num_rows`.
    """

    @property
    def name(self) -> str: ...

    def open(self, key: str, tokens: Sequence[int]) -> None:
        """A sequence begins with `tokens`. Its key must not be open."""
        ...

    def extend(self, key: str, tokens: Sequence[int]) -> None:
        """`tokens` were appended to the sequence; they are final."""
        ...

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        """For each (key, at most so many tokens), in order; a shorter or empty draft is always allowed."""
        ...

    def close(self, key: str) -> None:
        """Forget the sequence; nothing happens if it is not open."""
        ...

    def cost(self, num_rows: int, num_tokens: int) -> float: ...
