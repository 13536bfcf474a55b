from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.weights.linear_weight import DenseWeight, LinearWeight, shard_range

pytestmark = pytest.mark.fast


def grid(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), size=st.integers(1, 4), dim=st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_shards_dequantise_to_slices_and_put_together_to_the_whole(
    rows: int, columns: int, size: int, dim: int
) -> None:
    values = grid(rows * size, columns * size)
    weight: LinearWeight = DenseWeight(values)
    shards = [weight.shard(rank, size, dim) for rank in range(size)]
    for shard, piece in zip(shards, np.split(weight.dequantize(), size, axis=dim), strict=True):
        np.testing.assert_array_equal(shard.dequantize(), piece, strict=True)
        assert shard.shape == piece.shape
        assert shard.nbytes == piece.nbytes
    np.testing.assert_array_equal(np.concatenate([s.dequantize() for s in shards], axis=dim), values)


def test_a_shard_does_not_keep_the_whole_alive() -> None:
    shard = DenseWeight(grid(4, 4)).shard(1, 2, 0).dequantize()
    assert shard.base is None
    assert shard.flags.c_contiguous


def test_scheme() -> None:
    assert str(DenseWeight(grid(2, 2)).scheme) == "fp32"


@pytest.mark.parametrize(("dim", "what"), [(0, "6 output rows"), (1, "9 input columns")])
def test_dimensions_that_do_not_divide(dim: int, what: str) -> None:
    with pytest.raises(ConfigError, match=f"{what} do not divide into 4 equal parts"):
        DenseWeight(grid(6, 9)).shard(0, 4, dim)


def test_groups_stay_whole() -> None:
    assert shard_range((8, 128), 1, 2, 1, multiple_of=32) == (64, 128)
    with pytest.raises(ConfigError, match="4 equal parts of whole groups of 64"):
        shard_range((8, 128), 1, 4, 1, multiple_of=64)


@pytest.mark.parametrize(("rank", "size", "dim"), [(2, 2, 0), (-1, 2, 0), (0, 1, 2), (0, 0, 0)])
def test_shards_that_do_not_exist(rank: int, size: int, dim: int) -> None:
    with pytest.raises(ValueError, match="there is no shard"):
        DenseWeight(grid(2, 2)).shard(rank, size, dim)


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros((2, 2), np.float64)])
def test_only_float32_matrices(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected a float32 matrix"):
        DenseWeight(values)
