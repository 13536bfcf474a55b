"""Costs that were foretold from measurements, corrected by what things then took."""

from __future__ import annotations

from collections.abc import Callable

STRENGTH = 6.0  # observations that the measurement counts for at first
HELD = 0.1  # and for ever, so that there is one line even if all costs are equal
KEEP = 0.97  # of the weight of all that was known, at each new observation
STEEPEST = 16.0
CHANGE = 0.05  # of a cost, at least, before the correction in use is replaced
ALWAYS, SOMETIMES = 64, 4  # so many first observations, and then every so many-th, are learned from


class Lessons:
    """Which observations are worth their time: all of the first ones, later only some."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> bool:
        """Whether the next observation is to be learned from."""
        self._count += 1
        return self._count < ALWAYS or self._count % SOMETIMES == 0


class CostLine:
    """actual = fixed + slope * foretold, by least squares; the older an observation, the lighter.

    Host code around a computation costs the same for a short one and a long one, and a busy minute stretches what was
    measured in a quiet one: hence two numbers. They begin as 0 and 1, as if `STRENGTH` observations had said
    so. Neither is ever negative; equal foretold costs share a difference among both.
    """

    def __init__(self) -> None:
        self.fixed, self.slope = 0.0, 1.0
        self._weight = self._x = self._xx = self._y = self._xy = 0.0

    def __call__(self, foretold: float) -> float:
        return self.fixed + self.slope * foretold

    def observe(self, foretold: float, actual: float) -> None:
        """Any unit, the same for both."""
        x, y = foretold, actual
        if not self._weight:
            self._weight = STRENGTH  # half of it for a cost of nothing
            self._x = self._y = STRENGTH / 2 * x
            self._xx = self._xy = STRENGTH / 2 * x * x
        self._weight = self._weight * KEEP + 1.0
        self._x = self._x * KEEP + x
        self._xx = self._xx * KEEP + x * x
        self._y = self._y * KEEP + y
        self._xy = self._xy * KEEP + x * y
        self._fit()

    def fade(self) -> None:
        """Half of what is known is taken to have been as foretold, and all of it weighs half."""
        self._weight, self._x, self._xx = self._weight / 2, self._x / 2, self._xx / 2
        self._y, self._xy = (self._y / 2 + self._x) / 2, (self._xy / 2 + self._xx) / 2
        self._fit()

    def _fit(self) -> None:
        mean_square = self._xx / self._weight
        if mean_square <= 0.0:
            self.fixed = max(0.0, self._y / (self._weight + HELD))
            return
        w, held = self._weight + HELD, HELD * mean_square
        xx, xy = self._xx + held, self._xy + held
        determinant = w * xx - self._x * self._x
        self.fixed = (self._y * xx - self._x * xy) / determinant
        self.slope = (w * xy - self._x * self._y) / determinant
        if self.fixed < 0.0:
            self.fixed, self.slope = 0.0, xy / xx
        if not 0.0 <= self.slope <= STEEPEST:
            self.slope = min(max(self.slope, 0.0), STEEPEST)
            self.fixed = max(0.0, (self._y - self.slope * self._x) / w)


class CostLines:
    """One `CostLine` per magnitude of the number of rows.

    The corrections in use change in jumps, so that what is derived from them can be kept; `revision` counts the jumps.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._learned: dict[int, CostLine] = {}
        self._used: dict[int, tuple[float, float]] = {}

    def __call__(self, rows: int, foretold: float) -> float:
        fixed, slope = self.line(rows)
        return fixed + slope * foretold

    def line(self, rows: int) -> tuple[float, float]:
        """(fixed, slope) in use."""
        return self._used.get(rows.bit_length(), (0.0, 1.0))

    def frozen(self) -> Callable[[int, float], float]:
        """The corrections as they are now."""
        lines = CostLines()
        lines._used = dict(self._used)
        return lines

    def fade(self, rows: int) -> None:
        """See `CostLine.fade`; the correction in use is replaced."""
        line = self._learned.get(rows.bit_length())
        if line is not None:
            line.fade()
            self._used[rows.bit_length()] = line.fixed, line.slope
            self.revision += 1

    def observe(self, rows: int, foretold: float, actual: float, matters: float) -> None:
        """matters: a cost of which `CHANGE` is too little to make a difference."""
        kind = rows.bit_length()
        line = self._learned.get(kind)
        if line is None:
            line = self._learned[kind] = CostLine()
        line.observe(foretold, actual)
        if abs(line(foretold) - self(rows, foretold)) > CHANGE * matters:
            self._used[kind] = line.fixed, line.slope
            self.revision += 1
