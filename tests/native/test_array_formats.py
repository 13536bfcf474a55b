"""Matrices packed from integers, scales and minima, and dense ones: against the arithmetic in numpy, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import PackedMatrix, ThreadPool, kernel_sets
from slipstream.kernels.cpu.weights import CpuMatrix, aligned_zeros, from_arrays
from slipstream.kernels.table import Kernels
from tests.native.packed import DENSE, Floats, given, quantize, tokens

pytestmark = pytest.mark.fast
POOL = ThreadPool(2)
K = cpu_kernels(2)
OTHERS = [cpu_kernels(1), cpu_kernels(3), *(cpu_kernels(2, instructions=name) for name in kernel_sets()[1:])]
GROUPS: dict[str, int | None] = {
    "INT4_G32": 32, "INT4_G64": 64, "INT4_G128": 128, "UINT4_G32": 32, "UINT4_G64": 64, "UINT4_G128": 128,
    "INT8_G32": 32, "INT8_CHANNEL": None,
}  # fmt: skip


@dataclass(frozen=True)
class Quantised:
    """[rows, columns] integers of one type with random scales (all powers of two, when `exact`)."""

    dtype: str
    quants: np.ndarray[Any, Any]
    scales: np.ndarray[Any, Any]
    minima: np.ndarray[Any, Any] | None

    @classmethod
    def random(cls, dtype: str, rows: int, columns: int, seed: int = 0, *, exact: bool = False) -> Quantised:
        rng = np.random.default_rng(seed)
        group, unsigned = GROUPS[dtype], dtype.startswith("U")
        low, high = (0, 16) if unsigned else (-8, 8) if "4" in dtype.split("_")[0] else (-128, 128)
        quants = rng.integers(low, high, (rows, columns), dtype=np.uint8 if unsigned else np.int8)
        shape = (rows, 1 if group is None else -(-columns // group))
        numbers = 2.0 ** rng.integers(-6, -2, shape) if exact else rng.normal(0, 0.02, shape)
        minima = -rng.integers(0, 16, shape) * numbers if exact else rng.normal(0, 0.1, shape)
        kind = np.float32 if group is None else np.float16
        return cls(dtype, quants, numbers.astype(kind), minima.astype(kind) if unsigned else None)

    def pack(self, pool: ThreadPool = POOL) -> CpuMatrix:
        return from_arrays(self.dtype, self.quants, self.scales, self.minima, pool)

    def per_column(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        columns = self.quants.shape[1]
        return np.repeat(values.astype(np.float32), GROUPS[self.dtype] or columns, axis=1)[:, :columns]

    def values(self) -> Floats:
        values: Floats = self.per_column(self.scales) * self.quants.astype(np.float32)
        return values if self.minima is None else values + self.per_column(self.minima)


def product(kernels: Kernels, x: Floats, weight: Quantised, ids: list[int] | None = None) -> Floats:
    return kernels.to_numpy(kernels.linear(given(kernels, x, ids)[0], weight.pack(), None))


def emulated(x: Floats, weight: Quantised) -> np.ndarray[Any, Any]:
    """Whole numbers multiplied and summed as integers per group of 32 columns, scaled and added in float64."""
    quants, scales = quantize(x)
    rows, columns = weight.quants.shape
    groups = quants.shape[1]
    padded = np.zeros((rows, groups * 32), np.int64)
    padded[:, :columns] = weight.quants
    dots = np.einsum("tgk,rgk->trg", quants.astype(np.int64), padded.reshape(rows, groups, 32))
    share = max(1, (GROUPS[weight.dtype] or groups * 32) // 32)

    def each(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.repeat(values.astype(np.float64), share, axis=1)[:, :groups]

    out = np.einsum("trg,tg,rg->tr", dots, scales.astype(np.float64), each(weight.scales))
    if weight.minima is not None:
        sums = quants.astype(np.int64).sum(axis=2) * scales.astype(np.float64)
        out += np.einsum("tg,rg->tr", sums, each(weight.minima))
    return out


@settings(max_examples=40, deadline=None)
@drawn(
    dtype=st.sampled_from(sorted(GROUPS)), rows=st.integers(1, 50), columns=st.integers(1, 400), seed=st.integers(0, 99)
)
def test_every_number_comes_back_exactly(dtype: str, rows: int, columns: int, seed: int) -> None:
    weight = Quantised.random(dtype, rows, columns, seed)
    packed = weight.pack()
    np.testing.assert_array_equal(packed.dequantize(), weight.values())
    copy = aligned_zeros(packed.packed.nbytes + 64, np.dtype(np.uint8))[: packed.packed.nbytes]
    copy[:] = packed.packed.data
    assert PackedMatrix.size_of(dtype, rows, columns) == packed.packed.nbytes
    again = CpuMatrix(PackedMatrix.adopt(dtype, rows, columns, copy))
    np.testing.assert_array_equal(again.dequantize(), weight.values())


@settings(max_examples=40, deadline=None)
@drawn(
    dtype=st.sampled_from(sorted(GROUPS)),
    rows=st.integers(1, 70),
    columns=st.integers(1, 400),
    count=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_products_are_the_integer_arithmetic(dtype: str, rows: int, columns: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = Quantised.random(dtype, rows, columns, seed, exact=True)
    whole = rng.integers(-127, 128, (count, columns)).astype(np.float32)
    whole[:, ::32] = 127  # every group's scale is 1, and every sum has few enough places for float32
    np.testing.assert_array_equal(product(K, whole, weight), emulated(whole, weight))
    weight = Quantised.random(dtype, rows, columns, seed)
    x = rng.standard_normal((count, columns)).astype(np.float32)
    size = np.abs(x) @ np.abs(weight.per_column(weight.scales) * weight.quants).T.astype(np.float64)
    if weight.minima is not None:
        size += np.abs(x) @ np.abs(weight.per_column(weight.minima)).T.astype(np.float64)
    assert (np.abs(product(K, x, weight) - emulated(x, weight)) <= 1e-6 * size + 1e-9).all()


@settings(max_examples=20, deadline=None)
@drawn(
    dtype=st.sampled_from(DENSE),
    rows=st.integers(1, 70),
    columns=st.integers(1, 400),
    count=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_whole_numbers_times_dense_weights(dtype: str, rows: int, columns: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.integers(-127, 128, (count, columns)).astype(np.float32)
    numbers = rng.integers(-127, 128, (rows, columns)).astype(np.float32)  # few enough bits for all three types
    stored = {
        "F32": numbers.view(np.uint8),
        "F16": numbers.astype(np.float16).view(np.uint8),
        "BF16": (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
    }[dtype]
    assert K.bind_stored is not None
    weight = K.bind_stored("linear", dtype, (rows, columns), stored.reshape(-1))
    got = K.to_numpy(K.linear(given(K, whole)[0], weight, None))
    np.testing.assert_array_equal(got, whole.astype(np.int64) @ numbers.astype(np.int64).T)


@pytest.mark.parametrize("dtype", GROUPS)
def test_no_bit_depends_on_the_company(dtype: str) -> None:
    weight = Quantised.random(dtype, 37, 450)
    x = np.random.default_rng(1).standard_normal((60, 450)).astype(np.float32)
    whole = product(K, x, weight)
    order = np.random.default_rng(2).permutation(60).tolist()
    for ids in ([5], [7, 3], list(range(9)), list(range(13, 60)), order):
        np.testing.assert_array_equal(product(K, x, weight, ids), whole[ids])
        for other in OTHERS:
            np.testing.assert_array_equal(product(other, x, weight, ids), whole[ids])


@pytest.mark.parametrize("dtype", GROUPS)
def test_as_a_table_of_embeddings_the_padding_stays_zero(dtype: str) -> None:
    """What reads whole groups of 32 columns must find nothing behind the last one."""
    weight = Quantised.random(dtype, 20, 45)
    batch = tokens([0, 1, 2])
    rows = K.embedding(batch, weight.pack(), 1.0)
    np.testing.assert_array_equal(K.to_numpy(rows), weight.values()[:3])
    normed = K.to_numpy(K.rms_norm(rows, K.bind("vector", np.ones(45, np.float32)), 0.0))
    np.testing.assert_allclose((normed.astype(np.float64) ** 2).mean(axis=1), 1, rtol=1e-5)


def test_bits_per_weight() -> None:
    for dtype, bits in (
        ("INT4_G32", 4.5), ("INT4_G64", 4.25), ("INT4_G128", 4.125), ("UINT4_G32", 5), ("UINT4_G64", 4.5),
        ("UINT4_G128", 4.25), ("INT8_G32", 8.5), ("INT8_CHANNEL", 8 + 32 / 1024),
    ):  # fmt: skip
        assert Quantised.random(dtype, 32, 1024).pack().packed.nbytes * 8 == bits * 32 * 1024


def test_refusals() -> None:
    good = Quantised.random("INT4_G64", 4, 100)
    half, byte = np.zeros((4, 2), np.float16), np.zeros((4, 100), np.int8)
    unsigned = byte.astype(np.uint8)
    cases: list[tuple[str, Any, Any, Any, str]] = [
        ("Q4_0", good.quants, half, None, "no packed form of arrays for Q4_0"),
        ("INT4_G64", unsigned, half, None, "the quants of INT4_G64 are int8"),
        ("UINT4_G64", byte, half, half, "the quants of UINT4_G64 are uint8"),
        ("INT4_G64", byte, half.astype(np.float32), None, "the scales of INT4_G64 are float16"),
        ("INT8_CHANNEL", byte, half[:, :1].copy(), None, "the scales of INT8_CHANNEL are float32"),
        ("INT4_G64", byte, half, half, "INT4_G64 has no minima"),
        ("UINT4_G64", unsigned, half, None, "UINT4_G64 has minima"),
        ("INT4_G64", byte, half[:, :1].copy(), None, r"the scales have the shape \[4, 1\], not \[4, 2\]"),
        ("UINT4_G64", unsigned, half, half[:3], r"the minima have the shape \[3, 2\], not \[4, 2\]"),
        ("INT4_G64", byte[:0], half[:0], None, "at least one row"),
        ("INT4_G64", byte + np.int8(8), half, None, "integers that do not fit in 4 bits"),
        ("INT4_G64", byte - np.int8(9), half, None, "integers that do not fit in 4 bits"),
        ("UINT4_G64", unsigned + np.uint8(16), half, half, "integers that do not fit in 4 bits"),
        ("INT4_G64", byte, half + np.float16(np.inf), None, "scales that are not finite"),
        ("UINT4_G64", unsigned, half, half * np.float16(np.nan), "scales that are not finite"),
        ("INT8_CHANNEL", byte, np.full((4, 1), np.nan, np.float32), None, "scales that are not finite"),
    ]
    for dtype, quants, scales, minima, message in cases:
        with pytest.raises(ValueError, match=message):
            from_arrays(dtype, quants, scales, minima, POOL)
