from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from slipstream.bench.stats import distribution, mean_interval, nearest_rank, student_t, t_interval

pytestmark = pytest.mark.fast

numbers = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def test_nearest_rank_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [nearest_rank(values, q) for q in (0.5, 0.9, 0.95, 0.99, 1.0, 0.001)] == [50, 90, 95, 99, 100, 1]
    assert nearest_rank([5.0, 1.0, 3.0], 0.5) == 3.0
    assert nearest_rank([7.0], 0.99) == 7.0
    assert nearest_rank(values, 0.07) == 7.0  # 0.07 * 100 is a little above 7 in binary
    with pytest.raises(ValueError, match="nothing"):
        nearest_rank([], 0.5)


@settings(max_examples=80, deadline=None)
@given(numbers, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_nearest_rank_agrees_with_numpy(values: list[float], quantile: float) -> None:
    assert nearest_rank(values, quantile) == np.quantile(values, quantile, method="inverted_cdf")


def test_a_distribution_holds_exact_values() -> None:
    found = distribution([[float(n)] for n in range(1, 201)])
    assert found is not None
    assert (found.count, found.mean, found.minimum, found.maximum) == (200, 100.5, 1.0, 200.0)
    assert [found.quantiles[name].value for name in ("p50", "p90", "p95", "p99")] == [100, 180, 190, 198]
    assert all(each.low <= each.value <= each.high for each in found.quantiles.values())
    assert all(each.firm for each in found.quantiles.values())
    assert distribution([]) is None
    assert distribution([[], []]) is None


def test_intervals_of_equal_values_are_points() -> None:
    found = distribution([[2.0]] * 30)
    assert found is not None
    assert {(each.low, each.value, each.high) for each in found.quantiles.values()} == {(2.0, 2.0, 2.0)}
    assert mean_interval([3.0] * 5) is not None
    assert (mean_interval([3.0] * 5).low, mean_interval([3.0] * 5).high) == (3.0, 3.0)


def test_a_percentile_beyond_the_samples_is_not_firm() -> None:
    found = distribution([[float(n)] for n in range(99)])
    assert [found.quantiles[name].firm for name in ("p50", "p95", "p99")] == [True, True, False]
    assert distribution([[float(n)] for n in range(100)]).quantiles["p99"].firm


def test_the_bootstrap_draws_whole_groups() -> None:
    """Twenty answers of 50 equal gaps each are 20 samples, not 1000."""
    rng = np.random.default_rng(3)
    levels = rng.normal(10, 1, 20)
    grouped = distribution([np.full(50, level) for level in levels]).quantiles["p50"]
    single = distribution([[level] for level in np.repeat(levels, 50)]).quantiles["p50"]
    assert grouped.value == single.value
    assert grouped.high - grouped.low > 2 * (single.high - single.low)


def test_the_bootstrap_agrees_with_the_order_statistics() -> None:
    """The 95 % interval of a median has a distribution-free form: the ranks of a binomial."""
    values = np.sort(np.random.default_rng(1).exponential(1.0, 400))
    low, high = (values[int(scipy_stats.binom.ppf(tail, 400, 0.5))] for tail in (0.025, 0.975))
    found = distribution([[value] for value in values]).quantiles["p50"]
    assert found.low == pytest.approx(low, rel=0.05)
    assert found.high == pytest.approx(high, rel=0.05)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [[float(n % 17)] for n in range(100)]
    assert distribution(values, seed=1) == distribution(values, seed=1)


def test_a_mean_interval_is_near_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(100, 10, 400)
    found = mean_interval(values)
    half = 1.96 * values.std() / 20
    assert found.value == values.mean()
    assert found.low == pytest.approx(values.mean() - half, abs=0.3)
    assert found.high == pytest.approx(values.mean() + half, abs=0.3)
    assert mean_interval([]) is None
    assert not mean_interval([1.0]).firm


@pytest.mark.parametrize("freedom", [*range(1, 21), 21, 30, 100, 1000])
def test_students_t(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), rel=2e-4)


def test_students_interval() -> None:
    found = t_interval([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5))
    assert t_interval([]) is None
    assert not t_interval([5.0]).firm
    with pytest.raises(ValueError, match="one value"):
        student_t(0)
