"""How often drafted tokens turn out right: per kind of evidence and position, globally and per sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field

from slipstream.lean import dataclass

WINDOW = 50  # proposals (requirement D5)


@dataclass(slots=True)
class _Beta:
    """Successes and failures, the older the lighter."""

    successes: float
    failures: float
    count: int = 0  # of observations, however old

    def add(self, success: bool, keep: float) -> None:
        self.successes = self.successes * keep + success
        self.failures = self.failures * keep + (not success)
        self.count += 1

    @property
    def mean(self) -> float:
        return self.successes / (self.successes + self.failures)


@dataclass(slots=True)
class AcceptanceModel:
    """P(draft token at a position is right | those before it were), per (evidence, position).

    A new class begins with the weight of `strength` observations at the parent's estimate, else at that of the position
    before, else at `prior`; old observations fade with a half-life of about 0.7 / (1 - keep) of the same class.
    Positions from `positions` on share one estimate. What is observed here is observed by the parent too: one sequence
    is a child of all sequences.
    """

    prior: float = 0.5
    strength: float = 4.0
    keep: float = 0.99
    positions: int = 8
    parent: AcceptanceModel | None = None
    priors: Mapping[int, float] = field(default_factory=dict)  # of kinds of evidence, where `prior` is not theirs
    _classes: dict[tuple[int, int], _Beta] = field(default_factory=dict)

    def child(self) -> AcceptanceModel:
        return AcceptanceModel(self.prior, 2 * self.strength, self.keep, self.positions, self, self.priors)

    def observe(self, evidence: int, proposed: int, accepted: int) -> None:
        """Of a draft of `proposed` tokens the first `accepted` were right. Says nothing about those after the first
        wrong one. Raises ValueError unless 0 <= accepted <= proposed."""
        if not 0 <= accepted <= proposed:
            raise ValueError(f"{accepted} of {proposed} drafted tokens accepted.")
        for position in range(min(accepted + 1, proposed)):
            key = (evidence, min(position, self.positions - 1))
            if key not in self._classes:
                mean = self._mean(key)
                self._classes[key] = _Beta(mean * self.strength, (1 - mean) * self.strength)
            self._classes[key].add(position < accepted, self.keep)
        if self.parent is not None:
            self.parent.observe(evidence, proposed, accepted)

    def chance(self, evidence: int, position: int) -> float:
        """The probability that the token at a position is right if those before it are."""
        if position >= self.positions:
            position = self.positions - 1
        own = self._classes.get((evidence, position))
        return self._mean((evidence, position)) if own is None else own.mean

    def chances(self, evidence: int, count: int) -> list[float]:
        """For each of `count` positions the probability that it and all before it are right."""
        chance, chances = 1.0, []
        for position in range(count):
            chance *= self.chance(evidence, position)
            chances.append(chance)
        return chances

    def count(self, evidence: int, position: int) -> int:
        """How often a token of this class has been judged, in all sequences."""
        if self.parent is not None:
            return self.parent.count(evidence, position)
        known = self._classes.get((evidence, min(position, self.positions - 1)))
        return 0 if known is None else known.count

    def _mean(self, key: tuple[int, int]) -> float:
        known = self._known(key)
        if known is not None:
            return known
        evidence, position = key
        # Where one token was right the next one tends to be: a flat prior would keep long drafts from being tried.
        return self._mean((evidence, position - 1)) if position else self.priors.get(evidence, self.prior)

    def _known(self, key: tuple[int, int]) -> float | None:
        own = self._classes.get(key)
        if own is not None:
            return own.mean
        return None if self.parent is None else self.parent._known(key)


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
