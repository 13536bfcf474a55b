from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.weights.dequantize import dequantize
from slipstream.weights.q8_0 import to_q8_0

pytestmark = pytest.mark.fast


@given(st.integers(0, 1000), st.sampled_from([1e-6, 1.0, 300.0]))
@settings(max_examples=20, deadline=None)
def test_values_move_by_half_a_scale_at_most(seed: int, size: float) -> None:
    values = (size * np.random.default_rng(seed).standard_normal((3, 64))).astype(np.float32)
    back = dequantize(to_q8_0(values), "Q8_0").reshape(values.shape)
    largest = np.abs(values.reshape(-1, 32)).max(axis=1, keepdims=True)
    # Half a step, and what float16 takes from the scale of 127 steps; below its normal range that is a fixed amount.
    bound = largest / 127 * (0.5 + 127 / 2048) + 127 * 2.0**-25
    assert np.all(np.abs(back - values).reshape(-1, 32) <= bound)


def test_the_bytes_are_ggufs() -> None:
    values = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
    np.testing.assert_array_equal(to_q8_0(values), quantize(values, GGMLQuantizationType.Q8_0).reshape(-1))


def test_zeros_and_what_is_next_to_nothing() -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, 40] = 1e-12
    assert not dequantize(to_q8_0(values), "Q8_0").any()


@pytest.mark.parametrize("values", [np.zeros(32, np.float32), np.zeros((2, 33), np.float32)])
def test_shapes_without_whole_blocks_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="no whole blocks"):
        to_q8_0(values)


def test_values_that_no_scale_reaches_are_refused() -> None:
    with pytest.raises(ValueError, match="no float16 scale"):
        to_q8_0(np.full((1, 32), 1e9, np.float32))
