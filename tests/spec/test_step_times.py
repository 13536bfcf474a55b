from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast


def test_measured_points_are_exact() -> None:
    measured = {(1, 1, 9): 4.0, (1, 2, 9): 5.0, (1, 4, 9): 6.0, (4, 4, 7): 6.5, (4, 8, 7): 9.0}
    times = StepTimes(measured)
    assert {at: times(*at) for at in measured} == measured


def test_between_and_beyond_measured_points() -> None:
    times = StepTimes({(1, 1, 0): 4.0, (1, 3, 0): 6.0, (3, 3, 0): 7.0, (3, 6, 0): 10.0})
    assert times(1, 2) == 5.0
    assert times(1, 5) == 8.0
    assert times(3, 8) == 12.0
    assert times(2, 3) == 6.5


def test_noise_never_makes_more_tokens_cheaper() -> None:
    times = StepTimes({(1, 1, 0): 5.0, (1, 2, 0): 4.0, (1, 3, 0): 6.0})
    assert [times(1, n) for n in (1, 2, 3)] == [5.0, 5.0, 6.0]


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.just(2), st.integers(2, 30), st.sampled_from([5, 50])), st.floats(0.1, 9.0), min_size=1
    ),
    st.integers(2, 40),
)
def test_times_are_positive_and_never_fall(measured: dict[tuple[int, int, int], float], tokens: int) -> None:
    times = StepTimes(measured)
    for context in (0, 5, 20, 50, 200):
        assert 0.0 < times(2, tokens, context) <= times(2, tokens + 1, context) + 1e-9
        assert times(2, tokens, context) <= times(2, tokens, context + 7) + 1e-9


def test_a_slower_machine_is_noticed() -> None:
    times = StepTimes({(1, 1, 0): 1.0, (1, 2, 0): 1.2})
    for _ in range(300):
        times.observe_plain(1.0, 1.5)
    assert times(1, 1) == pytest.approx(1.5, rel=0.01)
    assert times(1, 2) / times(1, 1) == pytest.approx(1.2)


def test_what_drafts_really_add_is_noticed() -> None:
    times = StepTimes({(1, 1, 0): 4.0, (1, 2, 0): 4.2, (1, 6, 0): 5.0, (2, 2, 0): 5.0, (2, 4, 0): 6.0})
    before = times.revision
    for i in range(400):
        times.observe_plain(4.0, 8.0)  # the machine is half as fast as when it was measured
        tokens = (2, 6)[i % 2]
        times.observe_drafts(1, 4.0, times.measured(1, tokens), 8.0 + 2.0 + 2 * (0.2, 1.0)[i % 2])
    assert times(1, 1) == pytest.approx(8.0, rel=0.03)
    assert times(1, 2) == pytest.approx(10.4, rel=0.05)
    assert times(1, 6) == pytest.approx(12.0, rel=0.05)
    assert times.relative(1, 2) == pytest.approx(5.2, rel=0.05)
    assert times.relative(2, 4) == 6.0  # nothing was seen of two rows
    assert times.measured(1, 6) == 5.0
    assert times.revision > before


def test_one_outlier_counts_little() -> None:
    times = StepTimes({(1, 1, 0): 1.0})
    times.observe_plain(1.0, 500.0)
    assert times(1, 1) < 1.04


def test_no_measurements() -> None:
    with pytest.raises(ValueError, match="no measured"):
        StepTimes({})


def test_a_long_context_adds_what_was_measured_more() -> None:
    base = {(1, 1, 100): 4.0, (1, 2, 100): 4.5, (1, 3, 100): 6.0}
    times = StepTimes(base | {(1, 1, 200): 5.0, (1, 3, 200): 8.0, (1, 1, 400): 6.0, (1, 3, 400): 11.0})
    assert [times(1, n, 100) for n in (1, 2, 3)] == [4.0, 4.5, 6.0]
    assert times(1, 1, 0) == 4.0  # nothing is known of shorter ones
    assert times(1, 1, 150) == 4.5
    assert times(1, 2, 200) == 4.5 + 1.5  # between 1 and 2 more
    assert times(1, 3, 300) == 6.0 + (2.0 + 5.0) / 2
    assert times(1, 1, 600) == 7.0  # on with the last slope
    assert times.measured(1, 1, 600) == 7.0


def test_contexts_are_in_proportion_to_rows_beyond_the_measured_ones() -> None:
    base = {(rows, rows * n, 100): 4.0 + rows * n for rows in (1, 2, 4, 8) for n in (1, 3)}
    times = StepTimes(
        base | {(1, 1, 200): 5.0 + 0.5, (1, 3, 200): 7.0 + 0.75, (4, 4, 200): 8.0 + 2.5, (4, 12, 200): 16.0 + 3.0}
    )
    assert times(8, 8, 200) == 12.0 + 5.0
    assert times(8, 24, 200) == 28.0 + 6.0
    assert times(2, 2, 200) == pytest.approx(6.0 + 0.5 + (2.5 - 0.5) / 3)  # between the measured ones
