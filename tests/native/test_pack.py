"""Repacking loses nothing and refuses what it cannot hold."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kernels.cpu.native import PackedMatrix, ThreadPool
from slipstream.kernels.cpu.weights import CpuMatrix, bind_stored
from tests.native.packed import DENSE, QUANTIZED, random_blocks, values_of

pytestmark = pytest.mark.fast
POOL = ThreadPool(2)


@pytest.mark.parametrize("dtype", [*QUANTIZED, *DENSE])
@pytest.mark.parametrize("rows", [1, 15, 16, 37])
def test_every_number_comes_back_exactly(dtype: str, rows: int) -> None:
    data = random_blocks(dtype, rows, 512, seed=rows)
    packed = CpuMatrix(PackedMatrix(dtype, rows, 512, data, POOL))
    np.testing.assert_array_equal(packed.dequantize(), values_of(dtype, data, rows, 512))


def test_extreme_halves() -> None:
    """Subnormal, negative, largest and zero scales."""
    data = random_blocks("Q8_0", 1, 160).reshape(5, 34)
    data[:, :2] = np.array([6e-8, -6.1e-5, 65504, 0, -0.0], np.float16)[:, None].view(np.uint8)
    packed = CpuMatrix(PackedMatrix("Q8_0", 1, 160, data.reshape(-1), POOL))
    np.testing.assert_array_equal(packed.dequantize(), values_of("Q8_0", data.reshape(-1), 1, 160))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_dense_columns_need_not_fill_a_group(dtype: str) -> None:
    data = random_blocks(dtype, 5, 45)
    packed = CpuMatrix(PackedMatrix(dtype, 5, 45, data, POOL))
    np.testing.assert_array_equal(packed.dequantize(), values_of(dtype, data, 5, 45))


def test_size_in_memory_is_the_files_when_rows_fill_blocks() -> None:
    for dtype in QUANTIZED:
        data = random_blocks(dtype, 64, 512)
        # k-quants keep six-bit scales in whole bytes.
        assert data.size <= PackedMatrix(dtype, 64, 512, data, POOL).nbytes <= data.size * 1.04


@pytest.mark.parametrize(
    ("dtype", "columns", "size", "message"),
    [
        ("IQ4_NL", 32, 18, "no packed form for IQ4_NL"),
        ("Q4_1", 48, 30, "48 columns are not a multiple of Q4_1's block of 32"),
        ("Q6_K", 128, 105, "128 columns are not a multiple of Q6_K's block of 256"),
        ("INT4_G64", 64, 0, "INT4_G64 is packed from arrays"),
        ("Q4_1", 64, 41, "41 bytes, but 1 x 64 Q4_1 take 40"),
    ],
)
def test_refusals(dtype: str, columns: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedMatrix(dtype, 1, columns, np.zeros(size, np.uint8), POOL)


@pytest.mark.parametrize("dtype", [*QUANTIZED, *DENSE])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite(dtype: str, bad: float) -> None:
    data = random_blocks(dtype, 20, 256)
    if dtype in DENSE:
        value = np.float32([bad]).view(np.uint32)
        raw = {"F32": value, "F16": np.float16([bad]), "BF16": (value >> 16).astype(np.uint16)}[dtype].view(np.uint8)
        data[-len(raw) :] = raw
    else:
        data = random_blocks(dtype, 20, 256, scale=bad)
    with pytest.raises(ValueError, match="not finite"):
        PackedMatrix(dtype, 20, 256, data, POOL)


def test_what_has_no_stored_form_is_left_to_bind() -> None:
    assert bind_stored("vector", "F32", (8,), np.zeros(32, np.uint8), POOL) is None
    assert bind_stored("linear", "IQ4_NL", (1, 32), np.zeros(18, np.uint8), POOL) is None
    assert bind_stored("linear", "Q8_0", (1, 32), np.zeros(34, np.uint8), POOL) is not None


def test_a_team_has_at_least_one_member() -> None:
    with pytest.raises(ValueError, match=r"1 \.\. 1024"):
        ThreadPool(0)
