"""Weights in, numbers out."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.kernels.select import select_kernels
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage

pytestmark = pytest.mark.fast
K = select_kernels("reference")


def test_bind_copies() -> None:
    values = np.ones(3, dtype=np.float32)
    bound = K.bind("vector", values)
    values[:] = 5
    assert K.to_numpy(bound).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("matrix", np.zeros((2, 2), np.float32), "unknown weight kind 'matrix'"),
        ("linear", np.zeros(2, np.float32), "float32 with 2 dimensions"),
        ("vector", np.zeros((2, 2), np.float32), "float32 with 1 dimensions"),
        ("vector", np.zeros(2, np.float64), "not float64"),
    ],
)
def test_bind_refuses(kind: str, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        K.bind(kind, array)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kv_arrays_are_as_large_as_the_spec_says(dtype: str) -> None:
    spec = KVSpec(num_layers=3, num_kv_heads=2, head_dim=6, block_size=4, dtype=dtype)
    kv = KVStorage(spec, 5, K.new_kv(spec, 5))
    assert sum(t.numel() * t.element_size() for layer in kv.layers for t in (layer.k, layer.v)) == kv.nbytes
    assert not any(t.any() for layer in kv.layers for t in (layer.k, layer.v))


def test_storage_refuses_what_does_not_fit() -> None:
    spec = KVSpec(num_layers=3, num_kv_heads=2, head_dim=6)
    with pytest.raises(ValueError, match="2 layers of KV arrays, but the spec has 3"):
        KVStorage(spec, 5, [None, None])
    with pytest.raises(ValueError, match="at least 1"):
        KVStorage(spec, 0, [None] * 3)
