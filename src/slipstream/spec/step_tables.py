"""Step times laid out for choosing: by the number of drafted tokens, for one number of rows and about one context."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from slipstream.lean import dataclass
from slipstream.spec.learned_cost import DraftCost
from slipstream.spec.step_times import StepTimes

_KEPT = 64


@dataclass(frozen=True, slots=True)
class StepTable:
    """`seconds` of a step that verifies 0, 1, 2, ... drafted tokens in all its rows together, without the scale
    of the moment, which is the same factor for all. `least[n]`: the least that a token costs on the average of any
    number of tokens after the n-th. `could_pay`: the most tokens that a row's draft could have and pay, if all were
    right; 0: none."""

    seconds: tuple[float, ...]
    least: tuple[float, ...]
    could_pay: int = 0

    @classmethod
    def of(cls, seconds: Sequence[float], could_pay: int = 0) -> StepTable:
        return cls(tuple(seconds), tuple(_least_slopes(seconds)), could_pay)


class StepTables:
    """The last used tables, made when they are first asked for. Contexts are taken in steps of a quarter or less.

    longest: tokens of a draft. margin: gain in tokens per second that is too little to pay.
    """

    def __init__(self, times: StepTimes, longest: int, margin: float) -> None:
        self._times, self._longest, self._margin = times, longest, margin
        self._measured: OrderedDict[tuple[int, int], list[float]] = OrderedDict()
        self._tables: OrderedDict[tuple[int, int, int, int, DraftCost | None], StepTable] = OrderedDict()

    def at(self, rows: int, context: int, *, asked: int = 0, cost: DraftCost | None = None) -> StepTable:
        """rows: of the step. asked, cost: so many of them are drafted for by a proposer whose drafts take time, which
        is counted as part of the step; it must not change."""
        shift = _shift(context)
        key = (rows, context >> shift, asked << 6 | shift, self._times.revision, cost)
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
            return table
        table = self._tables[key] = self._make(rows, _middle(context, shift), asked, cost)
        if len(self._tables) > _KEPT:
            self._tables.popitem(last=False)
        return table

    def _make(self, rows: int, context: int, asked: int, cost: DraftCost | None) -> StepTable:
        return self._with_drafting(self._times.corrected(rows, self._ladder(rows, context)), rows, asked, cost)

    def _with_drafting(self, seconds: list[float], rows: int, asked: int, cost: DraftCost | None) -> StepTable:
        longest = self._longest
        together = 1
        if cost is not None:
            together = asked
            drafting = [0.0, *(cost(asked, n) for n in range(1, longest + 1))]
            seconds = [s + drafting[min(longest, -(-n // asked))] for n, s in enumerate(seconds)]
        rate = rows / seconds[0] * (1.0 + self._margin)
        paying = [n for n in range(1, longest + 1) if (rows + n * together) / seconds[n * together] > rate]
        return StepTable.of(seconds, max(paying, default=0))

    def could_pay_as_measured(self, rows: int, context: int, *, asked: int = 0, cost: DraftCost | None = None) -> int:
        """`could_pay` of `at`, without what was learned since start-up."""
        return self._with_drafting(self.measured(rows, context), rows, asked, cost).could_pay

    def measured(self, rows: int, context: int) -> list[float]:
        """Seconds at start-up of a step with 0, 1, 2, ... drafted tokens: the same whatever is learned meanwhile."""
        shift = _shift(context)
        return self._ladder(rows, _middle(context, shift))

    def _ladder(self, rows: int, context: int) -> list[float]:
        key = rows, context
        found = self._measured.get(key)
        if found is None:
            measured = self._times.measured
            found = self._measured[key] = [measured(rows, rows + n, context) for n in range(rows * self._longest + 1)]
            if len(self._measured) > _KEPT:
                self._measured.popitem(last=False)
        return found


def _shift(context: int) -> int:
    return max(0, context.bit_length() - 3)


def _middle(context: int, shift: int) -> int:
    """Of the contexts that are taken for one."""
    return (context >> shift << shift) + (1 << shift >> 1)


def _least_slopes(seconds: Sequence[float]) -> list[float]:
    """For each n the least of (seconds[m] - seconds[n]) / (m - n) over m > n: the first edge of the lower convex hull
    of what begins at n. Infinite at the end."""
    slopes = [float("inf")] * len(seconds)
    hull = [len(seconds) - 1]  # its corners, from the right; the last one is the nearest
    for n in range(len(seconds) - 2, -1, -1):
        while len(hull) > 1 and _slope(seconds, n, hull[-1]) >= _slope(seconds, hull[-1], hull[-2]):
            hull.pop()
        slopes[n] = _slope(seconds, n, hull[-1])
        hull.append(n)
    return slopes


def _slope(seconds: Sequence[float], start: int, end: int) -> float:
    return (seconds[end] - seconds[start]) / (end - start)
