"""How long a step takes for so many rows and tokens: measured at start-up, corrected while running."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


class StepTimes:
    """Seconds by (rows, tokens); tokens >= rows >= 1.

    measured: at least one entry per measured number of rows. Between measured points the time is interpolated, beyond
    them it goes on with the last slope. Times are made to never fall with more tokens (noise would invite drafts that
    seem to cost nothing). Raises ValueError without measurements.
    """

    def __init__(self, measured: Mapping[tuple[int, int], float]) -> None:
        if not measured:
            raise ValueError("no measured step times.")
        by_rows: dict[int, list[tuple[int, float]]] = {}
        for (rows, tokens), seconds in sorted(measured.items()):
            line = by_rows.setdefault(rows, [])
            line.append((tokens, max(seconds, line[-1][1] if line else 0.0)))
        self._rows = sorted(by_rows)
        self._lines = [by_rows[rows] for rows in self._rows]
        self._drift = 1.0

    def __call__(self, rows: int, tokens: int) -> float:
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] == rows or at == 0:
            line = min(at, len(self._rows) - 1)
            # Another number of rows costs what as many more or fewer tokens cost.
            return self._drift * _on_line(self._lines[line], tokens)
        low, high = self._rows[at - 1], self._rows[at]
        share = (rows - low) / (high - low)
        below, above = _on_line(self._lines[at - 1], tokens), _on_line(self._lines[at], tokens)
        return self._drift * (below + share * (above - below))

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Take over slow changes of the whole machine; single outliers count little."""
        expected = self(rows, tokens)
        if seconds > 0.0 and expected > 0.0:
            ratio = min(max(seconds / expected, 0.5), 2.0)
            self._drift *= ratio**0.05


def _on_line(line: list[tuple[int, float]], tokens: int) -> float:
    if len(line) == 1:
        return line[0][1] * max(1.0, tokens / line[0][0])
    at = min(max(bisect_left(line, (tokens, 0.0)), 1), len(line) - 1)
    (x0, y0), (x1, y1) = line[at - 1], line[at]
    return max(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0), line[0][1] * min(1.0, tokens / line[0][0]))
