from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast


def test_measured_points_are_exact() -> None:
    measured = {(1, 1): 4.0, (1, 2): 5.0, (1, 4): 6.0, (4, 4): 6.5, (4, 8): 9.0}
    times = StepTimes(measured)
    assert {at: times(*at) for at in measured} == measured


def test_between_and_beyond_measured_points() -> None:
    times = StepTimes({(1, 1): 4.0, (1, 3): 6.0, (3, 3): 7.0, (3, 6): 10.0})
    assert times(1, 2) == 5.0
    assert times(1, 5) == 8.0
    assert times(3, 8) == 12.0
    assert times(2, 3) == 6.5


def test_noise_never_makes_more_tokens_cheaper() -> None:
    times = StepTimes({(1, 1): 5.0, (1, 2): 4.0, (1, 3): 6.0})
    assert [times(1, n) for n in (1, 2, 3)] == [5.0, 5.0, 6.0]


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.tuples(st.just(2), st.integers(2, 30)), st.floats(0.1, 9.0), min_size=1),
    st.integers(2, 40),
)
def test_times_are_positive_and_never_fall(measured: dict[tuple[int, int], float], tokens: int) -> None:
    times = StepTimes(measured)
    assert 0.0 < times(2, tokens) <= times(2, tokens + 1) + 1e-9


def test_a_slower_machine_is_noticed() -> None:
    times = StepTimes({(1, 1): 1.0, (1, 2): 1.2})
    for _ in range(300):
        times.observe(1, 1, 1.5)
    assert times(1, 1) == pytest.approx(1.5, rel=0.01)
    assert times(1, 2) / times(1, 1) == pytest.approx(1.2)


def test_one_outlier_counts_little() -> None:
    times = StepTimes({(1, 1): 1.0})
    times.observe(1, 1, 500.0)
    assert times(1, 1) < 1.04


def test_no_measurements() -> None:
    with pytest.raises(ValueError, match="no measured"):
        StepTimes({})
