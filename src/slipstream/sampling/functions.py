"""e^x, ln x and sums as sampling defines them: one order of float64 operations, the same bits on every processor.

What `numpy.exp` and `sum` round to depends on the processor and on NumPy's version. Draws are compared with each other
and with thresholds, so each function here is a fixed sequence of additions, multiplications and divisions, none of them
fused; cpp/kernels/cpu/sampling_math.h repeats it operation by operation, which is why native tokens are these tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]

SUM_LANES = 512

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 32 bits, so that whole multiples of it are exact.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, which the lowest bits then show
_EXP_LOWEST = -708.0
# (e^r - 1) / r on [-ln 2 / 2, ln 2 / 2], relative error of e^r below 1e-15.
_EXP = (
    1.0000000000000013,
    0.5000000000000001,
    0.16666666666615607,
    0.04166666666662413,
    0.008333333367332009,
    0.0013888888917213717,
    0.0001984119061583585,
    2.4801521295954376e-05,
    2.763265575933203e-06,
    2.7620088445409746e-07,
)
_SQRT_HALF = 0.7071067811865476
_LOG_TERMS = 12  # of 2 (f + f^3 / 3 + f^5 / 5 + ...), f = (m - 1) / (m + 1), |f| < 0.172


def exp(x: Float64Array) -> Float64Array:
    """e^x for x <= 0, elementwise; exactly 1 at 0, exactly 0 below -708 and at -inf. Relative error below 1e-15."""
    low = x < _EXP_LOWEST
    y = np.where(low, _EXP_LOWEST, x)
    shifted = y * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full_like(r, _EXP[-1])
    for coefficient in _EXP[-2::-1]:
        p = p * r + coefficient
    p = p * r + 1.0
    scaled: Float64Array = (p.view(np.int64) + (shifted.view(np.int64) << 52)).view(np.float64)
    return np.where(low, 0.0, scaled)


def log(x: Float64Array) -> Float64Array:
    """ln x for finite, normal x > 0, elementwise. Relative error below 1e-15, near 1 too."""
    m, e = np.frexp(x)
    small = m < _SQRT_HALF
    m = np.where(small, m + m, m)
    k = np.where(small, e - 1, e).astype(np.float64)
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    p = np.full_like(z, 1.0 / (2 * _LOG_TERMS - 1))
    for term in range(_LOG_TERMS - 2, -1, -1):
        p = p * z + 1.0 / (2 * term + 1)
    result: Float64Array = k * _LN2_HIGH + (k * _LN2_LOW + (f + f) * p)
    return result


def total(x: Float64Array) -> float:
    """The sum of x [N]: element i goes to lane i % 512, each lane is added up in order, then the upper half of the
    lanes is added to the lower one until one is left."""
    lanes = np.zeros(SUM_LANES)
    for start in range(0, len(x), SUM_LANES):
        part = x[start : start + SUM_LANES]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])
