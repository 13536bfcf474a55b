"""What drafting takes: as measured at start-up, corrected by what it then took."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from slipstream.spec.cost_line import CostLines

DraftCost: TypeAlias = Callable[[int, int], float]
"""(rows, tokens drafted for each) -> seconds of drafting, on a machine as fast as at start-up."""


class LearnedCost:
    """What drafting takes. `current` is another object whenever the correction changes, and never changes itself.

    foretold: (rows, tokens for each) -> seconds, as measured at start-up.
    """

    def __init__(self, foretold: DraftCost) -> None:
        self.foretold = foretold
        self._lines = CostLines()
        self.current: DraftCost = foretold

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """seconds: what drafting took, less what all steps now take longer than when they were measured."""
        expected = self.foretold(rows, tokens)
        known, revision = self.current(rows, tokens), self._lines.revision
        # A moment in which the machine does something else must not look like a change.
        actual = min(seconds, 3.0 * max(known, expected, 1e-5))
        self._lines.observe(rows, expected, actual, matters=known)
        if self._lines.revision != revision:
            self.current = _corrected(self.foretold, self._lines.frozen())

    def fade(self, rows: int) -> None:
        """What was learned of drafts for so many rows counts less, the measurement more."""
        self._lines.fade(rows)
        self.current = _corrected(self.foretold, self._lines.frozen())


def _corrected(foretold: DraftCost, used: Callable[[int, float], float]) -> DraftCost:
    def cost(rows: int, tokens: int) -> float:
        return used(rows, foretold(rows, tokens))

    return cost
