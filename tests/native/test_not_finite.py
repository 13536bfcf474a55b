"""What overflowed on the way stays visible: a product, a cap or a sum never makes a usable number of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import kernel_sets
from slipstream.kernels.specs import AttentionSpec
from slipstream.kernels.table import Kernels, Tensor
from tests.kernels.batches import token_batch
from tests.native.packed import QUANTIZED, Floats, random_blocks
from tests.native.test_attention import run

pytestmark = pytest.mark.fast
SETS = [cpu_kernels(2), *(cpu_kernels(1, instructions=name) for name in kernel_sets())]
every_set = pytest.mark.parametrize("kernels", SETS, ids=["team", *kernel_sets()])
COLUMNS = 256
BATCH = token_batch([0, 1])


def overflowed(kernels: Kernels, column: int, *, nan: bool) -> Tensor:
    """[2, COLUMNS]: equal numbers, but row 0 has +inf in `column`, or NaN (inf - inf)."""
    values = np.repeat(np.array([[1.0], [0.01]], np.float32), COLUMNS, axis=1)
    x = kernels.embedding(BATCH, kernels.bind("embedding", values), 1.0)
    parts = []
    for sign in (1, -1):
        matrix = np.eye(COLUMNS, dtype=np.float32)
        matrix[column, :2] = sign * 3e38
        parts.append(kernels.linear(x, kernels.bind("linear", matrix), None))
    return kernels.add(*parts) if nan else parts[0]


def check_rows(result: Floats) -> None:
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


@every_set
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_products_of_int8_activations(kernels: Kernels, dtype: str, nan: bool) -> None:
    assert kernels.bind_stored is not None
    weight = kernels.bind_stored("linear", dtype, (40, COLUMNS), random_blocks(dtype, 40, COLUMNS))
    assert weight is not None
    for column in (0, 9, 37, COLUMNS - 1):
        check_rows(kernels.to_numpy(kernels.linear(overflowed(kernels, column, nan=nan), weight, None)))


@every_set
@pytest.mark.parametrize(
    "op",
    [
        lambda k, x: k.soft_cap(x, 5.0),
        lambda k, x: k.gated_activation(x, k.scale(x, 0.0), "silu"),
        lambda k, x: k.gated_activation(x, k.scale(x, 0.0), "gelu_tanh"),
    ],
    ids=["soft_cap", "silu", "gelu_tanh"],
)
def test_elements(kernels: Kernels, op: Callable[[Kernels, Tensor], Tensor]) -> None:
    result = kernels.to_numpy(op(kernels, overflowed(kernels, 5, nan=True)))
    assert np.argwhere(np.isnan(result)).tolist() == [[0, 5]]


@every_set
def test_routing(kernels: Kernels) -> None:
    result = kernels.to_numpy(kernels.moe_route(overflowed(kernels, 5, nan=True), 3, True))
    assert np.isnan(result[0, :3]).all()
    np.testing.assert_allclose(result[1, :3], 1 / 3, rtol=1e-6)


@every_set
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("part", [0, 1])
def test_attention(kernels: Kernels, part: int, soft_cap: float | None) -> None:
    """A query or key too large for its products is NaN where it is used, and nowhere else."""
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=16, scale=3.0, window=20, soft_cap=soft_cap)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((300, 32)).astype(np.float32) for _ in range(3))
    large, other = (q, k) if part == 0 else (k, q)
    large[40, 3:5] = 3e38, -3e38  # infinite when scaled, or as float16
    other[:, 3:5] = 100
    expected = np.zeros((300, 32), bool)
    expected[40 : 41 if part == 0 else 60, :16] = True
    for chunk in (300, 7):
        np.testing.assert_array_equal(np.isnan(run(kernels, (q, k, v), spec, 16, chunk, dtype="float16")), expected)


def test_large_numbers_are_numbers() -> None:
    """Scales near the end of float32."""
    weight = random_blocks("Q8_0", 16, COLUMNS, scale=1.0)
    for kernels in SETS:
        x = kernels.embedding(BATCH, kernels.bind("embedding", np.full((2, COLUMNS), 1e30, np.float32)), 1.0)
        assert kernels.bind_stored is not None
        matrix = kernels.bind_stored("linear", "Q8_0", (16, COLUMNS), weight)
        assert matrix is not None
        assert all(math.isfinite(each) for each in kernels.to_numpy(kernels.linear(x, matrix, None)).ravel())
