from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench.html import charts, page
from slipstream.bench.knee import find_knee
from slipstream.bench.record import FORMAT, ServeResult
from slipstream.bench.stats import Interval
from slipstream.bench.svg import HEIGHT, WIDTH, Chart, Point, Series, draw, ticks
from slipstream.bench.table import closing, level_notes, table, with_interval
from tests.bench.test_measure import level, sample

pytestmark = pytest.mark.fast

EVIL = "<script>alert('1')</script>&\"x"


def result(*levels, slo: tuple[str, ...] = ()) -> ServeResult:
    return ServeResult(
        FORMAT, EVIL, "2026", EVIL, "chat", EVIL, "0.1", {EVIL: EVIL}, {"kind": EVIL}, {}, slo, levels,
        find_knee(levels), (EVIL,),
    )  # fmt: skip


LEVELS = (
    level(sample(0, 0.0, [0.5, 0.7, 1.0]), sample(1, 1.0, [1.2, 1.3]), value=1, slo="ttft_p50=1"),
    level(sample(0, 0.0, [0.6, 0.8, 1.2]), sample(1, 1.0, [], error="timeout"), value=2, slo="ttft_p50=1"),
)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-6, 1e9))
def test_ticks_are_round_and_reach_the_top(high: float) -> None:
    found = ticks(high)
    assert found[0] == 0
    assert found[-1] >= high * (1 - 1e-9)
    assert 2 <= len(found) <= 8
    mantissa = float(f"{found[1]:.9e}".partition("e")[0])
    assert mantissa in (1, 2, 2.5, 5)
    assert ticks(0) == ticks(5e-324) == [0.0, 1.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0, 1e6)), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_every_chart_is_well_formed_and_stays_inside(points: list[tuple[float, float]], log: bool, steps: bool) -> None:
    series = Series(EVIL, tuple(Point(x, y, y / 2, y * 1.5) for x, y in sorted(points)), steps)
    text = draw(Chart(EVIL, EVIL, EVIL, (series, series), log, ((points[0][0], EVIL),) if points else (), 5.0))
    root = ElementTree.fromstring(text)
    for shape in root.iter():
        for pair in shape.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_places_of_points() -> None:
    text = draw(Chart("t", "x", "y", (Series("a", (Point(1, 0), Point(2, 5), Point(4, 10))),), log_x=True))
    assert re.findall(r'polyline class="line s0" points="([^"]*)"', text) == ["64.0,254.0 305.0,144.0 546.0,34.0"]


def test_the_page_is_self_contained_and_escapes_what_it_shows() -> None:
    text = page(result(*LEVELS, slo=("ttft_p50=1s",)))
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert not re.findall(r'(?:src|href)="', text)
    assert text.count("<svg") == len(charts(result(*LEVELS, slo=("ttft_p50=1s",)))) == 7
    assert "&lt;script&gt;" in text
    assert 'class="limit"' in text
    for svg in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(svg)
    assert "no samples" not in text


def test_a_level_without_an_answer_can_be_shown() -> None:
    nothing = level(sample(0, 0.0, [], error="timeout"))
    assert table([nothing])[1].split()[:3] == ["1", "-", "0.00"]
    assert "no samples" in page(result(nothing))
    assert "failed: 1 x timeout" in "\n".join(level_notes(nothing))
    assert closing(result(nothing))[-1].startswith("Not even the first level")
    assert page(result()).count("<svg") == 0


def test_the_table() -> None:
    head, first, second = table(LEVELS)
    assert head.split()[:4] == ["at", "once", "output", "tok/s"]
    assert len(head) == len(first) == len(second)
    assert " 0.10 met " in first
    assert "missed" not in first
    assert second.endswith(" 1")


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (None, "-"),
        (Interval(0.0125, 0.01, 0.015), "12.5 [10.0, 15.0]"),
        (Interval(0.25, 0.2, 0.31, False), "~250 [200, 310]"),
    ],
)
def test_numbers(interval: Interval | None, text: str) -> None:
    assert with_interval(interval, 1000) == text


def test_charts_leave_out_marks_that_lie_outside() -> None:
    far = msgspec.structs.replace(result(*LEVELS), knee=msgspec.structs.replace(find_knee(LEVELS), limit=99.0))
    assert all(chart.marks == () for chart in charts(far))
