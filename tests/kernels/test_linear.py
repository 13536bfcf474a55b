"""x weight^T: the product, and the independence of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.reference.tile import ROWS, cut_rows, row_tiles
from slipstream.kernels.select import select_kernels

K = select_kernels("reference")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 16, 37])
def test_product(rows: int) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = normal(rng, rows, 40), normal(rng, 7, 40), normal(rng, 7)
    got = K.to_numpy(K.linear(torch.from_numpy(x), K.bind("linear", weight), K.bind("vector", bias)))
    np.testing.assert_allclose(got, x @ weight.T + bias, atol=1e-5)
    assert got.shape == (rows, 7)


def test_tiles_hold_all_rows_with_little_padding() -> None:
    assert cut_rows(0, (4, 16, 64)) == []
    assert cut_rows(3, (4, 16, 64)) == [4]
    assert cut_rows(5, (4, 16, 64)) == [16]
    assert cut_rows(150, (4, 16, 64)) == [64, 64, 16, 16]
    assert cut_rows(33, (16,)) == [16, 16, 16]
    assert cut_rows(68, (16, 64)) == [64, 16]


def test_weights_too_large_to_try_have_one_tile() -> None:
    assert row_tiles(2**20, 2**10, 1) == (ROWS,)


@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(1, 300),
    outputs=st.integers(1, 300),
    rows=st.integers(1, 150),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_a_row_is_the_same_alone_and_anywhere_in_a_batch(
    columns: int, outputs: int, rows: int, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = K.bind("linear", normal(rng, outputs, columns))
    x = torch.from_numpy(normal(rng, rows, columns))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([K.linear(row[None], weight, None) for row in x])
    torch.set_num_threads(threads)
    together = K.linear(x, weight, None)
    order = torch.from_numpy(rng.permutation(rows))
    shuffled = K.linear(x[order], weight, None)
    torch.set_num_threads(before)
    assert torch.equal(together, alone)
    assert torch.equal(shuffled, alone[order])
