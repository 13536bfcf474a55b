"""Weights, rotation tables and the KV cache in the forms that the native kernels read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from slipstream.kernels.cpu.native import PackedMatrix, ThreadPool
from slipstream.kernels.specs import RopeTable
from slipstream.kv.spec import KV_DTYPE_BYTES, KVSpec
from slipstream.lean import dataclass

BLOCK_SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(  # columns and bytes of a block in a GGUF file
    {
        "Q4_0": (32, 18),
        "Q4_1": (32, 20),
        "Q5_0": (32, 22),
        "Q5_1": (32, 24),
        "Q8_0": (32, 34),
        "Q2_K": (256, 84),
        "Q3_K": (256, 110),
        "Q4_K": (256, 144),
        "Q5_K": (256, 176),
        "Q6_K": (256, 210),
        "F32": (1, 4),
        "F16": (1, 2),
        "BF16": (1, 2),
    }
)
PACKED_DTYPES = tuple(BLOCK_SIZES)
_DIMENSIONS = {"linear": 2, "embedding": 2, "vector": 1}
_GROUP = 32


@dataclass(frozen=True, slots=True, eq=False)
class CpuMatrix:
    """[rows, columns], packed without loss in blocks of 16 rows."""

    packed: PackedMatrix

    @property
    def rows(self) -> int:
        return self.packed.rows

    @property
    def columns(self) -> int:
        return self.packed.cols

    def dequantize(self) -> NDArray[np.float32]:
        """[rows, columns], exactly what the file's blocks mean."""
        out = np.empty((self.rows, -(-self.columns // _GROUP) * _GROUP), np.float32)
        for row in range(self.rows):
            self.packed.unpack_row(row, out[row])
        return np.ascontiguousarray(out[:, : self.columns])


@dataclass(frozen=True, slots=True, eq=False)
class CpuVector:
    values: NDArray[np.float32]  # zero-padded to a multiple of 32
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class CpuRope:
    cos: NDArray[np.float32]  # [max_position, pairs]
    sin: NDArray[np.float32]
    interleaved: bool

    @property
    def native(self) -> tuple[NDArray[np.float32], NDArray[np.float32], bool]:
        return self.cos, self.sin, self.interleaved


@dataclass(frozen=True, slots=True, eq=False)
class CpuKVLayer:
    """Blocks of one layer: for every KV head K [head_dim, block_size], then V [block_size, head_dim]."""

    cache: NDArray[Any]  # flat; float32, or uint16 that holds float16 or bfloat16


def bind(kind: str, array: NDArray[np.float32], pool: ThreadPool) -> CpuMatrix | CpuVector:
    """Copies the array. Raises ValueError for an unknown kind, a wrong dtype or a wrong number of dimensions."""
    if kind not in _DIMENSIONS:
        raise ValueError(f"unknown weight kind {kind!r}: expected one of {', '.join(_DIMENSIONS)}")
    if array.dtype != np.float32 or array.ndim != _DIMENSIONS[kind]:
        expected = f"float32 with {_DIMENSIONS[kind]} dimensions"
        raise ValueError(f"a {kind} weight is {expected}, not {array.dtype} {array.shape}")
    if kind == "vector":
        values = aligned_zeros(-(-array.size // _GROUP) * _GROUP, np.dtype(np.float32))
        values[: array.size] = array
        return CpuVector(values, array.size)
    rows, columns = array.shape
    return CpuMatrix(PackedMatrix("F32", rows, columns, np.ascontiguousarray(array).view(np.uint8).reshape(-1), pool))


def bind_stored(
    kind: str, dtype: str, shape: tuple[int, ...], data: NDArray[np.uint8], pool: ThreadPool
) -> CpuMatrix | None:
    """Takes over a matrix as a file stores it; None for what has no packed form of its own."""
    if kind == "vector" or len(shape) != 2 or dtype not in PACKED_DTYPES:
        return None
    return CpuMatrix(PackedMatrix(dtype, shape[0], shape[1], data, pool))


def from_arrays(
    dtype: str,
    quants: NDArray[np.int8] | NDArray[np.uint8],
    scales: NDArray[np.float16] | NDArray[np.float32],
    minima: NDArray[np.float16] | None,
    pool: ThreadPool,
) -> CpuMatrix:
    """A matrix of integers: value = scale * quant, or scale * quant + minimum.

    Args:
        dtype: INT4_G32, INT4_G64, INT4_G128 (int8 from -8 to 7), UINT4_G32, UINT4_G64, UINT4_G128 (uint8 from 0 to 15,
            with minima), INT8_G32 or INT8_CHANNEL (int8). G: how many columns share a scale; CHANNEL: all of a row.
        quants: [rows, columns].
        scales: [rows, ceil(columns / group)] float16; [rows, 1] float32 for channels.
        minima: as `scales`, for the unsigned types.

    Raises ValueError for another type or shape, for integers that do not fit, and for numbers that are not finite.
    """
    return CpuMatrix(PackedMatrix.from_arrays(dtype, quants, scales, minima, pool))


def held_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Memory of a bound tensor of this GGUF type; leading dimensions count as rows."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    fits = dtype in BLOCK_SIZES and columns % BLOCK_SIZES[dtype][0] == 0
    return PackedMatrix.size_of(dtype if fits else "F32", rows, columns)


def packed_layout(dtypes: Iterable[str], pool: ThreadPool) -> str:
    """A digest of small matrices packed here: it changes with the layout, whether or not anybody thought of it.

    It covers these types and F32, which types without a packed form become.
    """
    digest = xxh3_64()
    rows, columns = 18, 512  # a whole block of rows and a part of one, more than one group of groups
    for dtype in sorted({*dtypes, "F32"} & BLOCK_SIZES.keys()):
        block_columns, block_bytes = BLOCK_SIZES[dtype]
        count = rows * (columns // block_columns) * block_bytes
        # Bytes below 0x60 hold no infinite number, whatever their type.
        source = (np.arange(count, dtype=np.uint64) * 2654435761 // 65536 % 0x60).astype(np.uint8)
        digest.update(PackedMatrix(dtype, rows, columns, source, pool).data.data)
    return digest.hexdigest()


def to_packed(weight: CpuMatrix | CpuVector) -> NDArray[np.uint8] | None:
    return weight.packed.data if isinstance(weight, CpuMatrix) else None


def from_packed(dtype: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> CpuMatrix:
    return CpuMatrix(PackedMatrix.adopt(dtype, shape[0], shape[1], data))


def bind_rope(table: RopeTable) -> CpuRope:
    return CpuRope(
        np.array(table.cos, np.float32, order="C"), np.array(table.sin, np.float32, order="C"), table.interleaved
    )


def new_kv(spec: KVSpec, num_blocks: int) -> list[CpuKVLayer]:
    elements = num_blocks * spec.num_kv_heads * 2 * spec.block_size * spec.head_dim
    dtype = np.dtype(np.float32 if KV_DTYPE_BYTES[spec.dtype] == 4 else np.uint16)
    return [CpuKVLayer(aligned_zeros(elements, dtype)) for _ in range(spec.num_layers)]


def aligned_zeros(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros at a multiple of 64 bytes. Memory is taken from the system only when it is first written."""
    data = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -data.ctypes.data % 64
    return data[start : start + count * dtype.itemsize].view(dtype)
