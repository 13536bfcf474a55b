from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.cost_line import ALWAYS, CHANGE, SOMETIMES, STEEPEST, CostLine, CostLines, Lessons
from slipstream.spec.learned_cost import LearnedCost

pytestmark = pytest.mark.fast


def test_before_anything_is_seen_the_measurement_counts() -> None:
    line = CostLine()
    assert [line(x) for x in (0.0, 0.5, 2.0)] == [0.0, 0.5, 2.0]


@pytest.mark.parametrize(("fixed", "slope"), [(0.5, 1.0), (0.0, 3.0), (0.7, 0.5)])
def test_a_line_is_found(fixed: float, slope: float) -> None:
    line = CostLine()
    for i in range(300):
        x = 1.0 + i % 4
        line.observe(x, fixed + slope * x)
    for x in (1.0, 2.5, 4.0):
        assert line(x) == pytest.approx(fixed + slope * x, rel=0.12)


def test_a_change_is_noticed_within_a_hundred_observations() -> None:
    line = CostLine()
    for _ in range(300):
        line.observe(1.0, 5.0)
    for _ in range(100):
        line.observe(1.0, 1.0)
    assert line(1.0) == pytest.approx(1.0, abs=0.4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(-5.0, 100.0)), max_size=40))
def test_a_cost_is_never_negative_and_never_falls(seen: list[tuple[float, float]]) -> None:
    line = CostLine()
    for foretold, actual in seen:
        line.observe(foretold, actual)
    assert 0.0 <= line.slope <= STEEPEST
    assert 0.0 <= line(0.0) <= line(1.0) <= line(7.0)


def test_numbers_of_rows_are_learned_by_magnitude_and_in_jumps() -> None:
    lines = CostLines()
    lines.observe(1, 1.0, 1.0 + 0.9 * CHANGE, matters=1.0)
    assert (lines.revision, lines(1, 1.0)) == (0, 1.0)
    for _ in range(50):
        lines.observe(5, 1.0, 3.0, matters=1.0)
    assert lines(5, 1.0) == lines(7, 1.0) == pytest.approx(3.0, rel=0.2)
    assert [lines(rows, 1.0) for rows in (1, 3, 8)] == [1.0] * 3
    assert 1 < lines.revision < 50


def test_what_drafting_is_taken_to_cost_is_another_function_whenever_it_changes() -> None:
    learned = LearnedCost(lambda rows, tokens: 0.1 * tokens)
    first = learned.current
    learned.observe(1, 2, 0.2)
    assert learned.current is first
    for _ in range(100):
        learned.observe(1, 1, 0.5)
        learned.observe(1, 3, 0.7)
    assert (first(1, 1), first(1, 3)) == (0.1, pytest.approx(0.3))
    assert learned.current(1, 1) == pytest.approx(0.5, rel=0.15)
    assert learned.current(1, 3) == pytest.approx(0.7, rel=0.15)
    assert learned.current(2, 1) == 0.1


def test_a_moment_in_which_the_machine_does_something_else_counts_little() -> None:
    learned = LearnedCost(lambda rows, tokens: 0.1 * tokens)
    learned.observe(1, 1, 50.0)
    assert learned.current(1, 1) < 0.17


def test_what_fades_goes_half_the_way_to_what_was_foretold() -> None:
    lines = CostLines()
    for _ in range(300):
        lines.observe(1, 1.0, 9.0, matters=1.0)
    before, revision = lines(1, 1.0), lines.revision
    lines.fade(2)
    assert (lines(1, 1.0), lines.revision) == (before, revision)
    lines.fade(1)
    assert lines(1, 1.0) == pytest.approx((before + 1.0) / 2, rel=0.03)
    assert lines.revision == revision + 1


def test_later_on_only_some_observations_are_learned_from() -> None:
    lessons = Lessons()
    assert all(lessons.next() for _ in range(ALWAYS))
    assert [lessons.next() for _ in range(2 * SOMETIMES)] == [*[False] * (SOMETIMES - 1), True] * 2
