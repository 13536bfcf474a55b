"""How often drafted tokens turn out right: per kind of evidence and position, globally and per sequence."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW = 50  # proposals (requirement D5)


@dataclass(slots=True)
class _Beta:
    """Successes and failures, the older the lighter."""

    successes: float
    failures: float

    def add(self, success: bool, keep: float) -> None:
        self.successes = self.successes * keep + success
        self.failures = self.failures * keep + (not success)

    @property
    def mean(self) -> float:
        return self.successes / (self.successes + self.failures)


@dataclass(slots=True)
class AcceptanceModel:
    """P(draft token at a position is right | those before it were), per (evidence, position).

    A new class begins at `prior` with the weight of `strength` observations; old observations fade with a half-life of
    about 0.7 / (1 - keep) of the same class. Positions from `positions` on share one estimate.
    """

    prior: float = 0.5
    strength: float = 4.0
    keep: float = 0.99
    positions: int = 8
    _classes: dict[tuple[int, int], _Beta] = field(default_factory=dict)

    def observe(self, evidence: int, proposed: int, accepted: int) -> None:
        """Of a draft of `proposed` tokens the first `accepted` were right. Says nothing about those after the first
        wrong one. Raises ValueError unless 0 <= accepted <= proposed."""
        if not 0 <= accepted <= proposed:
            raise ValueError(f"{accepted} of {proposed} drafted tokens accepted.")
        for position in range(min(accepted + 1, proposed)):
            self._class(evidence, position).add(position < accepted, self.keep)

    def chances(self, evidence: int, count: int) -> list[float]:
        """For each of `count` positions the probability that it and all before it are right."""
        chance, chances = 1.0, []
        for position in range(count):
            known = self._classes.get((evidence, min(position, self.positions - 1)))
            chance *= self.prior if known is None else known.mean
            chances.append(chance)
        return chances

    def _class(self, evidence: int, position: int) -> _Beta:
        key = (evidence, min(position, self.positions - 1))
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = _Beta(self.prior * self.strength, (1 - self.prior) * self.strength)
        return known


@dataclass(slots=True)
class AcceptanceWindow:
    """Share of drafted tokens that were right in the last `WINDOW` proposals."""

    _proposals: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _proposed: int = 0
    _accepted: int = 0

    def observe(self, proposed: int, accepted: int) -> None:
        if len(self._proposals) == WINDOW:
            old_proposed, old_accepted = self._proposals[0]
            self._proposed -= old_proposed
            self._accepted -= old_accepted
        self._proposals.append((proposed, accepted))
        self._proposed += proposed
        self._accepted += accepted

    def __len__(self) -> int:
        return len(self._proposals)

    @property
    def rate(self) -> float | None:
        """None before the first proposal."""
        return self._accepted / self._proposed if self._proposed else None
