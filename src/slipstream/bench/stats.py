"""Percentiles and intervals. Everything here is a pure function of numbers and a seed.

Percentiles are nearest-rank (the smallest value with at least a share q of all values at or below it), so every
percentile is a time that was really measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTILES = (0.5, 0.9, 0.95, 0.99)
CONFIDENCE = 0.95
RESAMPLES = 400
_STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)  # 1 to 20 degrees of freedom, both sides, 95 %


class Interval(msgspec.Struct, frozen=True):
    """A value and its 95 % confidence interval. `firm` is false where there are too few samples beyond the percentile
    for the interval to mean anything: fewer than 1 / (1 - q) of them."""

    value: float
    low: float
    high: float
    firm: bool = True


class Distribution(msgspec.Struct, frozen=True):
    """Of one latency, in seconds. `quantiles` is by name: p50, p90, p95, p99."""

    count: int
    mean: float
    minimum: float
    maximum: float
    quantiles: dict[str, Interval]


def nearest_rank(values: Sequence[float] | Floats, quantile: float) -> float:
    """The nearest-rank percentile. Raises ValueError without values."""
    if len(values) == 0:
        raise ValueError("a percentile of nothing")
    ordered = np.sort(np.asarray(values, np.float64))
    return float(ordered[_rank(len(ordered), quantile)])


def distribution(groups: Sequence[Sequence[float] | Floats], *, seed: int = 0) -> Distribution | None:
    """Of all values of all groups, with intervals by a bootstrap that draws whole groups; None without values.

    A group holds what belongs together: the gaps between the chunks of one answer are not independent, so drawing
    single gaps would make the intervals far too narrow. Latencies of whole requests are groups of one.
    """
    arrays = [np.asarray(group, np.float64) for group in groups if len(group)]
    if not arrays:
        return None
    values = np.concatenate(arrays)
    owner = np.repeat(np.arange(len(arrays)), [len(each) for each in arrays])
    order = np.argsort(values, kind="stable")
    ordered, owner = values[order], owner[order]
    rng = np.random.default_rng(seed)
    drawn = np.empty((RESAMPLES, len(QUANTILES)))
    for number in range(RESAMPLES):
        weight = np.bincount(rng.integers(0, len(arrays), len(arrays)), minlength=len(arrays))
        reached = np.cumsum(weight[owner])
        ranks = np.maximum(np.ceil(np.array(QUANTILES) * reached[-1] - 1e-9), 1)
        drawn[number] = ordered[np.searchsorted(reached, ranks)]
    low, high = _tails(drawn)
    quantiles = {
        f"p{100 * q:g}": Interval(
            float(ordered[_rank(len(ordered), q)]),
            float(low[i]),
            float(high[i]),
            len(arrays) * (1 - q) >= 1 - 1e-9,
        )
        for i, q in enumerate(QUANTILES)
    }
    return Distribution(len(ordered), float(values.mean()), float(ordered[0]), float(ordered[-1]), quantiles)


def mean_interval(values: Sequence[float] | Floats, *, seed: int = 0) -> Interval | None:
    """The mean with a bootstrap interval; None without values. From one value the interval is not firm."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return None
    rng = np.random.default_rng(seed)
    drawn = array[rng.integers(0, len(array), (RESAMPLES, len(array)))].mean(axis=1)
    low, high = _tails(drawn[:, None])
    return Interval(float(array.mean()), float(low[0]), float(high[0]), len(array) > 1)


def student_t(freedom: int) -> float:
    """What so many degrees of freedom need on both sides for 95 %. Raises ValueError below one."""
    if freedom < 1:
        raise ValueError("an interval from one value")
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964  # the normal distribution's, and the first terms of its expansion to Student's (Fisher 1925)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float] | Floats) -> Interval | None:
    """The mean of a few independent rounds with Student's interval; None without values, not firm from one."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return None
    mean = float(array.mean())
    if len(array) == 1:
        return Interval(mean, mean, mean, False)
    half = student_t(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Interval(mean, mean - half, mean + half)


def _rank(count: int, quantile: float) -> int:
    """Index of the nearest-rank percentile. The small number takes back what rounding adds: 0.07 * 100 is above 7."""
    return max(math.ceil(quantile * count - 1e-9), 1) - 1


def _tails(drawn: Floats) -> tuple[Floats, Floats]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail), axis=0)
    return low, high
