"""Weights, rotation tables and KV arrays as torch tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.kernels.reference.tile import COLUMNS, pad_rows, row_tiles
from slipstream.kernels.specs import RopeTable
from slipstream.kv.spec import KV_DTYPE_BYTES, KVSpec

_KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DIMENSIONS = {"linear": 2, "embedding": 2, "vector": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A dense float32 weight whose rows are padded for `linear`."""

    data: torch.Tensor  # [round_up(rows, COLUMNS), columns]
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class BoundRope:
    cos: torch.Tensor  # [max_position, rotary_dim / 2]
    sin: torch.Tensor  # [max_position, rotary_dim / 2]
    interleaved: bool


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    k: torch.Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    v: torch.Tensor  # the same


def bind(kind: str, array: NDArray[np.float32]) -> Matrix | torch.Tensor:
    """Copies the array. Raises ValueError for an unknown kind, a wrong dtype or a wrong number of dimensions."""
    if kind not in _DIMENSIONS:
        raise ValueError(f"unknown weight kind {kind!r}: expected one of {', '.join(_DIMENSIONS)}")
    if array.dtype != np.float32 or array.ndim != _DIMENSIONS[kind]:
        expected = f"float32 with {_DIMENSIONS[kind]} dimensions"
        raise ValueError(f"a {kind} weight is {expected}, not {array.dtype} {array.shape}")
    data = torch.tensor(array)
    if kind == "vector":
        return data
    data = pad_rows(data, COLUMNS)
    row_tiles(data.shape[0], data.shape[1], torch.get_num_threads())  # tried now, not in the first step
    return Matrix(data, array.shape[0])


def bind_rope(table: RopeTable) -> BoundRope:
    return BoundRope(torch.tensor(table.cos), torch.tensor(table.sin), table.interleaved)


def new_kv(spec: KVSpec, num_blocks: int) -> Sequence[KVLayer]:
    shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
    return [KVLayer(_zeros(shape, spec.dtype), _zeros(shape, spec.dtype)) for _ in range(spec.num_layers)]


def _zeros(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Zeros that take no memory before they are written to; torch.zeros would touch every page of the pool."""
    nbytes = math.prod(shape) * KV_DTYPE_BYTES[dtype]
    return torch.from_numpy(np.zeros(nbytes, np.uint8)).view(_KV_DTYPES[dtype]).reshape(shape)


def to_numpy(x: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = x.detach().to(torch.float32).contiguous().numpy()
    return array
