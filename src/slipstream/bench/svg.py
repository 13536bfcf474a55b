"""Small line charts as inline SVG: no script, no fonts, colours from the page's style sheet (`.s0` to `.s5`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 34, 46


@dataclass(frozen=True, slots=True)
class Point:
    """`low` and `high` bound the shaded band; None: no band here."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[Point, ...]
    steps: bool = False  # a value holds until the next


@dataclass(frozen=True, slots=True)
class Chart:
    """`marks` are vertical lines with a label. `log_x` spaces doublings evenly."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    limit: float | None = None  # a horizontal line: the objective


def ticks(high: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to at least `high`, about `count` of them; less than a float can divide counts as 0."""
    if high < 1e-300:
        return [0.0, 1.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(high / step - 1e-9) + 1)]


def draw(chart: Chart) -> str:
    """The chart as one <svg> element; charts without points say so."""
    points = [point for series in chart.series for point in series.points]
    label = f'<text class="title" x="{LEFT}" y="18">{escape(chart.title)}</text>'
    frame = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title, quote=True)}">'
    if not points:
        return f'{frame}{label}<text class="tick" x="{LEFT}" y="{HEIGHT // 2}">no samples</text></svg>'
    highest = max(max(point.y, point.high or 0.0) for point in points)
    rows = ticks(max(highest, chart.limit or 0.0 if (chart.limit or 0) < 3 * highest else 0.0))
    scale = _Scale(chart, [point.x for point in points], rows[-1])
    parts = [frame, label, *_grid(chart, scale, rows)]
    for number, series in enumerate(chart.series):
        parts += _band(series, number, scale)
    for number, series in enumerate(chart.series):
        parts += _line(series, number, scale)
    parts += _legend(chart)
    return "".join([*parts, "</svg>"])


class _Scale:
    def __init__(self, chart: Chart, xs: Sequence[float], top: float) -> None:
        self.log = chart.log_x and min(xs) > 0
        self._low, self._high = self._of(min(xs)), self._of(max(xs))
        self._top = top

    def _of(self, x: float) -> float:
        return math.log2(x) if self.log else x

    def x(self, value: float) -> float:
        inner = WIDTH - LEFT - RIGHT
        span = self._high - self._low
        return round(LEFT + (inner / 2 if span == 0 else inner * (self._of(value) - self._low) / span), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / self._top, 1.0), 1)


def _grid(chart: Chart, scale: _Scale, rows: Sequence[float]) -> list[str]:
    parts = []
    for row in rows:
        y = scale.y(row)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4}">{row:g}</text>')
    xs = sorted({point.x for series in chart.series for point in series.points})
    if len(xs) > 9:
        xs = (
            [each for each in ticks(xs[-1], 6) if xs[0] <= each <= xs[-1]] if not scale.log else xs[:: len(xs) // 8 + 1]
        )
    for x in xs:
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{scale.x(x)}" y="{HEIGHT - BOTTOM + 16}">{x:g}</text>'
        )
    bottom = HEIGHT - BOTTOM
    for x, text in chart.marks:
        at = scale.x(x)
        parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
        side, shift = ("end", -4) if at > (LEFT + WIDTH) / 2 else ("start", 4)
        parts.append(f'<text class="tick" text-anchor="{side}" x="{at + shift}" y="{TOP + 10}">{escape(text)}</text>')
    if chart.limit is not None and chart.limit <= rows[-1]:
        y = scale.y(chart.limit)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" x="{middle}" y="{HEIGHT - 10}">{escape(chart.x_label)}</text>'
    )
    across = (TOP + bottom) / 2
    parts.append(
        f'<text class="label" text-anchor="middle" transform="rotate(-90 14 {across})" x="14" y="{across}">'
        f"{escape(chart.y_label)}</text>"
    )
    return parts


def _band(series: Series, number: int, scale: _Scale) -> list[str]:
    inner = [point for point in series.points if point.low is not None and point.high is not None]
    if len(inner) < 2:
        return []
    upper = [f"{scale.x(point.x)},{scale.y(point.high or 0.0)}" for point in inner]
    lower = [f"{scale.x(point.x)},{scale.y(point.low or 0.0)}" for point in reversed(inner)]
    return [f'<polygon class="band s{number}" points="{" ".join(upper + lower)}"/>']


def _line(series: Series, number: int, scale: _Scale) -> list[str]:
    places: list[str] = []
    previous: Point | None = None
    for point in series.points:
        if series.steps and previous is not None:
            places.append(f"{scale.x(point.x)},{scale.y(previous.y)}")
        places.append(f"{scale.x(point.x)},{scale.y(point.y)}")
        previous = point
    parts = [f'<polyline class="line s{number}" points="{" ".join(places)}"/>']
    if len(series.points) <= 20 and not series.steps:
        parts += [
            f'<circle class="dot s{number}" cx="{scale.x(p.x)}" cy="{scale.y(p.y)}" r="3">'
            f"<title>{escape(series.name)}: {p.x:g} -> {p.y:.4g}</title></circle>"
            for p in series.points
        ]
    return parts


def _legend(chart: Chart) -> list[str]:
    if len(chart.series) < 2:
        return []
    parts, at = [], WIDTH - RIGHT
    for number in reversed(range(len(chart.series))):
        name = chart.series[number].name
        at -= 7 * len(name) + 22
        parts.append(f'<line class="line s{number}" x1="{at}" x2="{at + 14}" y1="14" y2="14"/>')
        parts.append(f'<text class="tick" x="{at + 18}" y="18">{escape(name)}</text>')
    return parts
