"""Products: exact where the arithmetic is, and the same bits however they are computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import kernel_sets
from slipstream.kernels.table import Kernels, Weight
from tests.native.packed import DENSE, QUANTIZED, Floats, given, random_blocks, rounded, values_of

pytestmark = pytest.mark.fast
K = cpu_kernels(2)
OTHERS = [cpu_kernels(1), cpu_kernels(3), *(cpu_kernels(2, instructions=name) for name in kernel_sets()[1:])]


def stored(kernels: Kernels, dtype: str, rows: int, columns: int, data: NDArray[np.uint8]) -> Weight:
    assert kernels.bind_stored is not None
    weight = kernels.bind_stored("linear", dtype, (rows, columns), data)
    assert weight is not None
    return weight


def product(
    kernels: Kernels, x: Floats, dtype: str, rows: int, data: NDArray[np.uint8], ids: list[int] | None = None
) -> Floats:
    weight = stored(kernels, dtype, rows, x.shape[1], data)
    tensor, _ = given(kernels, x, ids)
    return kernels.to_numpy(kernels.linear(tensor, weight, None))


def whole_numbers(rows: int, columns: int, seed: int = 0) -> Floats:
    """Activations that are their own int8: every group has a 127, so its scale is 1."""
    x = np.random.default_rng(seed).integers(-127, 128, (rows, columns)).astype(np.float32)
    x[:, ::32] = 127
    return x


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("tokens", [1, 2, 6, 7, 49])
def test_whole_numbers_multiply_exactly(dtype: str, tokens: int) -> None:
    data = random_blocks(dtype, 40, 256, scale=2.0**-4)
    x = whole_numbers(tokens, 256)
    expected = x.astype(np.float64) @ values_of(dtype, data, 40, 256).astype(np.float64).T
    assert np.abs(expected).max() < 2**20  # with four binary places, exact in float32
    np.testing.assert_array_equal(product(K, x, dtype, 40, data), expected)


def test_the_largest_sums_do_not_overflow() -> None:
    """All quants and activations at their ends; Q8_0 may even hold -128."""
    for dtype in QUANTIZED:
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            data = random_blocks(dtype, 16, 256, scale=1.0, fill=byte)
            for sign in (-127, 127):
                x = np.full((3, 256), sign, np.float32)
                expected = x.astype(np.float64) @ values_of(dtype, data, 16, 256).astype(np.float64).T
                np.testing.assert_allclose(product(K, x, dtype, 16, data), expected, rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@drawn(
    dtype=st.sampled_from([*QUANTIZED, *DENSE]),
    rows=st.integers(1, 70),
    groups=st.integers(1, 20),
    tokens=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_close_to_float64(dtype: str, rows: int, groups: int, tokens: int, seed: int) -> None:
    columns = groups * (256 if dtype.endswith("_K") else 32)
    data = random_blocks(dtype, rows, columns, seed)
    x = np.random.default_rng(seed + 100).standard_normal((tokens, columns)).astype(np.float32)
    weight = values_of(dtype, data, rows, columns).astype(np.float64)
    taken = x.astype(np.float64) if dtype in DENSE else rounded(x)
    size = np.abs(taken) @ np.abs(weight).T
    assert (np.abs(product(K, x, dtype, rows, data) - taken @ weight.T) <= 1e-6 * size).all()


@pytest.mark.parametrize("dtype", [*QUANTIZED, *DENSE])
def test_no_bit_depends_on_the_company(dtype: str) -> None:
    """Alone, in batches of every size up to 70, in another order, with other threads, on other instruction sets."""
    rows, columns, count = 50, 512, 70
    data = random_blocks(dtype, rows, columns)
    x = np.random.default_rng(1).standard_normal((count, columns)).astype(np.float32)
    x[3] = 0
    x[4, 40] = 1e4
    whole = product(K, x, dtype, rows, data)
    for n in range(1, count):
        ids = list(range(count - n, count))
        np.testing.assert_array_equal(product(K, x, dtype, rows, data, ids), whole[ids], err_msg=f"{n} tokens")
    order = np.random.default_rng(2).permutation(count).tolist()
    np.testing.assert_array_equal(product(K, x, dtype, rows, data, order), whole[order])
    for other in OTHERS:
        for ids in ([5], [7, 3], list(range(9)), list(range(count))):
            np.testing.assert_array_equal(product(other, x, dtype, rows, data, ids), whole[ids])


def test_a_row_of_outputs_does_not_depend_on_the_others() -> None:
    rows, columns = 48, 96
    data = random_blocks("Q4_1", rows, columns)
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float32)
    whole = product(K, x, "Q4_1", rows, data)
    blocks = data.reshape(3, 16, -1)
    for order in ([2, 0, 1], [1], [0, 2]):
        part = product(K, x, "Q4_1", 16 * len(order), np.ascontiguousarray(blocks[order]).reshape(-1))
        np.testing.assert_array_equal(part, whole.reshape(5, 3, 16)[:, order].reshape(5, -1))


@pytest.mark.parametrize("dtype", ["Q4_1", "Q6_K", "F32"])
@pytest.mark.parametrize("rows", [5, 48])
def test_bias_residual_and_cap(dtype: str, rows: int) -> None:
    rng = np.random.default_rng(0)
    data = random_blocks(dtype, rows, 256)
    x = rng.standard_normal((9, 256)).astype(np.float32)
    bias, residual = rng.standard_normal(rows).astype(np.float32), rng.standard_normal((9, rows)).astype(np.float32)
    plain = product(K, x, dtype, rows, data)
    weight = stored(K, dtype, rows, 256, data)
    tensor, _ = given(K, x)
    biased = K.linear(tensor, weight, K.bind("vector", bias))
    np.testing.assert_array_equal(K.to_numpy(biased), plain + bias)
    np.testing.assert_array_equal(K.to_numpy(K.add(given(K, residual)[0], biased)), residual + (plain + bias))
    capped = K.to_numpy(K.soft_cap(K.linear(tensor, weight, None), 1.5))
    np.testing.assert_allclose(capped, np.tanh(plain.astype(np.float64) / 1.5) * 1.5, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtypes", [("Q4_1", "Q4_1"), ("Q5_0", "Q8_0")])
def test_gate_and_up_in_one_op_are_what_they_are_apart(kind: str, dtypes: tuple[str, str]) -> None:
    rows, columns, count = 96, 160, 60
    x = np.random.default_rng(0).standard_normal((count, columns)).astype(np.float32)
    gate, up = (stored(K, d, rows, columns, random_blocks(d, rows, columns, i)) for i, d in enumerate(dtypes))
    down_data = random_blocks("Q8_0", 16, rows)
    down = stored(K, "Q8_0", 16, rows, down_data)
    whole = None
    for ids in (list(range(count)), [0], [1, 2], list(range(10, 17))):
        tensor, _ = given(K, x, ids)
        a, b = K.linear(tensor, gate, None), K.linear(tensor, up, None)
        hidden = K.gated_activation(a, b, kind)  # type: ignore[arg-type]
        together = K.to_numpy(K.linear(hidden, down, None))
        values = K.to_numpy(hidden)
        g, u = K.to_numpy(a).astype(np.float64), K.to_numpy(b).astype(np.float64)
        inner = np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        act = g / (1 + np.exp(-g)) if kind == "silu" else 0.5 * g * (1 + np.tanh(inner))
        np.testing.assert_allclose(values, act * u, rtol=3e-5, atol=1e-6)
        np.testing.assert_array_equal(together, product(K, values, "Q8_0", 16, down_data))
        whole = together if whole is None else whole
        np.testing.assert_array_equal(together, whole[ids])
