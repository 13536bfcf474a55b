"""How long a step takes for so many rows and tokens at a context: measured at start-up, corrected while running."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from slipstream.spec.cost_line import CostLines

StepSeconds: TypeAlias = Mapping[tuple[int, int, int], float]
"""(rows, tokens of all rows, tokens in front of each row) -> seconds."""

PLAIN_SHARE, DRAFT_SHARE = 0.05, 0.01  # of a difference that one step of the kind corrects

_Line: TypeAlias = list[tuple[int, float]]  # (tokens, seconds), ascending


class StepTimes:
    """Seconds of a step; tokens >= rows >= 1, context the mean number of tokens in front of its rows.

    measured: of every number of rows that occurs, all with the least context that occurs with it are what the others
    are compared with; what a longer context costs is added, in proportion between the measured ones and beyond the
    last. Between measured points the time is interpolated, beyond them it goes on with the last slope. Times are made
    to never fall with more tokens or a longer context (noise would invite drafts that seem to cost nothing). Raises
    ValueError without measurements.
    """

    def __init__(self, measured: StepSeconds) -> None:
        if not measured:
            raise ValueError("no measured step times.")
        shortest: dict[int, int] = {}
        for rows, _, context in measured:
            shortest[rows] = min(context, shortest.get(rows, context))
        base: dict[int, _Line] = {}
        for (rows, tokens, context), seconds in sorted(measured.items()):
            if context == shortest[rows]:
                line = base.setdefault(rows, [])
                line.append((tokens, max(seconds, line[-1][1] if line else 0.0)))
        self._rows = sorted(base)
        self._lines = [base[rows] for rows in self._rows]
        self._contexts = [shortest[rows] for rows in self._rows]
        self._extra = _extra(measured, base, shortest)
        self._drift = 1.0
        self._added = CostLines()

    def __call__(self, rows: int, tokens: int, context: int = 0) -> float:
        return self._drift * self.relative(rows, tokens, context)

    @property
    def revision(self) -> int:
        """As long as it is the same, so are the answers of `relative`."""
        return self._added.revision

    @property
    def drift(self) -> float:
        """How many times as long as measured steps take now."""
        return self._drift

    def observe_plain(self, measured: float, seconds: float) -> None:
        """A step without drafts that was measured as `measured` took `seconds`; single outliers count little."""
        expected = self._drift * measured
        if seconds > 0.0 and expected > 0.0:
            self._drift *= (min(max(seconds, 0.5 * expected), 2.0 * expected) / expected) ** PLAIN_SHARE

    def observe_drafts(self, rows: int, plain: float, measured: float, seconds: float) -> None:
        """A step with drafts that was measured as `measured`, and as `plain` without them."""
        added = measured - plain
        expected = self._drift * (plain + self._added(rows, added))
        if seconds <= 0.0 or expected <= 0.0:
            return
        seconds = min(max(seconds, 0.5 * expected), 2.0 * expected)
        # Nobody knows what it would have taken without drafts: it says little about the scale.
        self._drift *= (seconds / expected) ** DRAFT_SHARE
        self._added.observe(rows, added, seconds / self._drift - plain, matters=plain)

    def fade(self, rows: int) -> None:
        """What drafted tokens were seen to add to steps of so many rows counts less, the measurement more."""
        self._added.fade(rows)

    def relative(self, rows: int, tokens: int, context: int = 0) -> float:
        """As `measured`, with what drafted tokens were seen to add; without the scale."""
        if tokens <= rows:
            return self.measured(rows, tokens, context)
        return self.corrected(rows, [self.measured(rows, rows, context), self.measured(rows, tokens, context)])[1]

    def corrected(self, rows: int, measured: Sequence[float]) -> list[float]:
        """`relative` where `measured` are those of the step without drafts, and then of others."""
        plain = measured[0]
        fixed, slope = self._added.line(rows)
        return [plain, *[plain + fixed + slope * (seconds - plain) for seconds in measured[1:]]]

    def measured(self, rows: int, tokens: int, context: int = 0) -> float:
        """As at start-up."""
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] == rows or at == 0:
            line = min(at, len(self._rows) - 1)
            # Another number of rows costs what as many more or fewer tokens cost.
            return _on_line(self._lines[line], tokens) + self._longer(rows, tokens, context, self._contexts[line])
        low, high = self._rows[at - 1], self._rows[at]
        share = (rows - low) / (high - low)
        below, above = _on_line(self._lines[at - 1], tokens), _on_line(self._lines[at], tokens)
        shortest = self._contexts[at - 1] + share * (self._contexts[at] - self._contexts[at - 1])
        return below + share * (above - below) + self._longer(rows, tokens, context, shortest)

    def _longer(self, rows: int, tokens: int, context: int, shortest: float) -> float:
        """What the context takes beyond `shortest`."""
        if context <= shortest:
            return 0.0
        start, before = shortest, 0.0
        for index, (end, per_rows) in enumerate(self._extra):
            extra = _of_rows(per_rows, rows, tokens)
            if end > start and (context <= end or index == len(self._extra) - 1):
                return before + max(0.0, extra - before) * (context - start) / (end - start)
            start, before = max(start, float(end)), max(before, extra)
        return before


def _extra(
    measured: StepSeconds, base: Mapping[int, _Line], shortest: Mapping[int, int]
) -> list[tuple[int, list[tuple[int, _Line]]]]:
    """By longer context, by number of rows: (tokens, seconds more than at the shortest context)."""
    found: dict[int, dict[int, _Line]] = {}
    for (rows, tokens, context), seconds in sorted(measured.items()):
        if context > shortest[rows]:
            line = found.setdefault(context, {}).setdefault(rows, [])
            more = seconds - _on_line(base[rows], tokens)
            line.append((tokens, max(more, line[-1][1] if line else 0.0)))
    return [(context, sorted(lines.items())) for context, lines in sorted(found.items())]


def _of_rows(lines: list[tuple[int, _Line]], rows: int, tokens: int) -> float:
    """Each row reads its own keys and values: beyond the measured numbers of rows it is in proportion to them."""
    numbers = [number for number, _ in lines]
    at = bisect_left(numbers, rows)
    if at < len(numbers) and numbers[at] == rows:
        return max(0.0, _on_line(lines[at][1], tokens))
    if at == 0 or at == len(numbers):
        number, line = lines[min(at, len(lines) - 1)]
        return max(0.0, _on_line(line, tokens * number / rows)) * rows / number
    (low, below), (high, above) = lines[at - 1], lines[at]
    share = (rows - low) / (high - low)
    first, second = _on_line(below, tokens * low / rows), _on_line(above, tokens * high / rows)
    return max(0.0, first + share * (second - first))


def _on_line(line: _Line, tokens: float) -> float:
    if len(line) == 1:
        return line[0][1] * max(1.0, tokens / line[0][0])
    at = min(max(bisect_left(line, (tokens, 0.0)), 1), len(line) - 1)
    (x0, y0), (x1, y1) = line[at - 1], line[at]
    return max(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0), line[0][1] * min(1.0, tokens / line[0][0]))
