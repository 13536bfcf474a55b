"""Block formats to float32.

Every result is bit for bit what ggml's reference gives: the same float32 products in the same order. Values are
produced in chunks of blocks, so temporaries stay near a megabyte whatever the tensor's size. A block that holds
a scale that is not finite yields values that are not finite, without a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipstream.weights.formats.ggml_types import GGML_TYPE_BY_NAME

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_ELEMENTS = 1 << 18


def dequantize(data: Bytes, dtype: str) -> Floats:
    """The float32 values of `data`, whole blocks of GGUF type `dtype`, flat.

    Args:
        data: [num_blocks * type_size] uint8, contiguous.
        dtype: a type name of `GGML_TYPE_BY_NAME`.

    Raises:
        ValueError: `data` is not a whole number of blocks.
    """
    kind = GGML_TYPE_BY_NAME[dtype]
    if data.size % kind.type_size:
        raise ValueError(f"{data.size} bytes are not a whole number of {dtype} blocks of {kind.type_size} bytes")
    num_blocks = data.size // kind.type_size
    blocks = data.reshape(num_blocks, kind.type_size)
    out = np.empty((num_blocks, kind.block_size), np.float32)
    decode = _DECODERS[dtype]
    step = max(1, _CHUNK_ELEMENTS // kind.block_size)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, num_blocks, step):
            decode(blocks[start : start + step], out[start : start + step])
    return out.reshape(-1)


def _f16(blocks: Bytes, offset: int) -> Floats:
    """The float16 at `offset` of each block: [num_blocks, 1] float32."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def _fields(packed: Bytes, shifts: tuple[int, ...], mask: int, run: int) -> Bytes:
    """Bit fields of `packed` [num_blocks, m]: per `run` bytes first all fields at shifts[0], then at shifts[1], ..."""
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run)
    fields = (runs >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)) & np.uint8(mask)
    return fields.reshape(len(packed), packed.shape[1] * len(shifts))


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little")


def _scaled(scale: Floats, values: NDArray[np.uint8] | NDArray[np.int8], out: Floats) -> None:
    """out = scale * values, where `scale` [num_blocks, groups] covers equal runs of `values` [num_blocks, elements]."""
    groups = scale.shape[1]
    np.multiply(
        scale[:, :, None],
        values.reshape(len(values), groups, values.shape[1] // groups),
        out=out.reshape(len(out), groups, out.shape[1] // groups),
        dtype=np.float32,
    )


def _subtract(minimum: Floats, out: Floats) -> None:
    """out -= minimum, where `minimum` [num_blocks, groups] covers equal runs of `out`."""
    view = out.reshape(len(out), minimum.shape[1], out.shape[1] // minimum.shape[1])
    view -= minimum[:, :, None]


def _f32_block(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view("<f4")


def _f16_block(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view("<f2")


def _bf16_block(blocks: Bytes, out: Floats) -> None:
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _scaled(_f16(blocks, 0), _fields(blocks[:, 2:], (0, 4), 15, 16).view(np.int8) - np.int8(8), out)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _scaled(_f16(blocks, 0), _fields(blocks[:, 4:], (0, 4), 15, 16), out)
    out += _f16(blocks, 2)


def _q5(high: Bytes, low: Bytes) -> Bytes:
    return _fields(low, (0, 4), 15, 16) | (_bits(high) << np.uint8(4))


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _scaled(_f16(blocks, 0), _q5(blocks[:, 2:6], blocks[:, 6:]).view(np.int8) - np.int8(16), out)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _scaled(_f16(blocks, 0), _q5(blocks[:, 4:8], blocks[:, 8:]), out)
    out += _f16(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    _scaled(_f16(blocks, 0), blocks[:, 2:].view(np.int8), out)


def _q2_k(blocks: Bytes, out: Floats) -> None:
    """16 groups of 16; [16] scale and minimum of 4 bits each, [64] quants of 2 bits, d, dmin."""
    scales = blocks[:, :16]
    _scaled(_f16(blocks, 80) * (scales & np.uint8(15)), _fields(blocks[:, 16:80], (0, 2, 4, 6), 3, 32), out)
    _subtract(_f16(blocks, 82) * (scales >> np.uint8(4)), out)


def _q3_k(blocks: Bytes, out: Floats) -> None:
    """16 groups of 16; [32] high bits (set: no offset), [64] low 2 bits, [12] scales of 6 bits, d."""
    low = _fields(blocks[:, 96:104], (0, 4), 15, 8)
    high = _fields(blocks[:, 104:108], (0, 2, 4, 6), 3, 4)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    quants = _fields(blocks[:, 32:96], (0, 2, 4, 6), 3, 32) | (_fields(blocks[:, :32], tuple(range(8)), 1, 32) << 2)
    _scaled(_f16(blocks, 108) * scales, quants.view(np.int8) - np.int8(4), out)


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of 6 bits each from 12 bytes: two [num_blocks, 8] arrays."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    high = np.uint8(0x30)
    scales = np.concatenate([first & np.uint8(63), (third & np.uint8(15)) | ((first >> np.uint8(2)) & high)], axis=1)
    minima = np.concatenate([second & np.uint8(63), (third >> np.uint8(4)) | ((second >> np.uint8(2)) & high)], axis=1)
    return scales, minima


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """8 groups of 32; d, dmin, [12] scales and minima of 6 bits, [128] quants of 4 bits."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    _scaled(_f16(blocks, 0) * scales, _fields(blocks[:, 16:], (0, 4), 15, 32), out)
    _subtract(_f16(blocks, 2) * minima, out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    """8 groups of 32; as Q4_K with [32] high bits before the quants."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    high = _fields(blocks[:, 16:48], tuple(range(8)), 1, 32)
    quants = _fields(blocks[:, 48:], (0, 4), 15, 32) | (high << np.uint8(4))
    _scaled(_f16(blocks, 0) * scales, quants, out)
    _subtract(_f16(blocks, 2) * minima, out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """16 groups of 16; [128] low 4 bits, [64] high 2 bits, [16] int8 scales, d."""
    high = _fields(blocks[:, 128:192], (0, 2, 4, 6), 3, 32)
    quants = _fields(blocks[:, :128], (0, 4), 15, 64) | (high << np.uint8(4))
    _scaled(_f16(blocks, 208) * blocks[:, 192:208].view(np.int8), quants.view(np.int8) - np.int8(32), out)


_DECODERS: MappingProxyType[str, Callable[[Bytes, Floats], None]] = MappingProxyType(
    {
        "F32": _f32_block,
        "F16": _f16_block,
        "BF16": _bf16_block,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }
)
