"""Random quantised matrices as files store them, and ways to run one op of the CPU backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels
from slipstream.weights.dequantize import dequantize
from slipstream.weights.formats.ggml_types import GGML_TYPE_BY_NAME
from tests.kernels.batches import int32

Floats = NDArray[np.float32]

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
DENSE = ("F32", "F16", "BF16")
_SCALE_OFFSETS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def random_blocks(
    dtype: str, rows: int, columns: int, seed: int = 0, *, scale: float | None = None, fill: int | None = None
) -> NDArray[np.uint8]:
    """[rows * row bytes] uint8; every fp16 scale is random, or `scale`; every other byte is random, or `fill`."""
    rng = np.random.default_rng(seed)
    if dtype in DENSE:
        values = rng.standard_normal(rows * columns).astype(np.float32)
        if dtype == "F16":
            return values.astype(np.float16).view(np.uint8)
        return (
            values.view(np.uint8) if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        )
    kind = GGML_TYPE_BY_NAME[dtype]
    count = rows * columns // kind.block_size
    blocks = rng.integers(0, 256, (count, kind.type_size), dtype=np.uint8)
    if fill is not None:
        blocks[:] = fill
    for offset in _SCALE_OFFSETS[dtype]:
        halves = rng.normal(0, 0.01, count).astype(np.float16) if scale is None else np.full(count, scale, np.float16)
        blocks[:, offset : offset + 2] = halves[:, None].view(np.uint8)
    return blocks.reshape(-1)


def values_of(dtype: str, data: NDArray[np.uint8], rows: int, columns: int) -> Floats:
    return dequantize(data, dtype).reshape(rows, columns)


def tokens(ids: Sequence[int]) -> ForwardBatch:
    """One row of tokens 0 ... n - 1 of a sequence, every logit wanted, in one large block."""
    n = len(ids)
    positions = int32(range(n))
    return ForwardBatch(
        int32(ids), positions, positions, int32([0, n]), int32([n]), np.zeros((1, 1), np.int32), positions
    )


def given(kernels: Kernels, x: Floats, ids: Sequence[int] | None = None) -> tuple[object, ForwardBatch]:
    """A tensor that holds the rows `ids` (by default all) of `x`, bit for bit."""
    batch = tokens(range(len(x)) if ids is None else ids)
    return kernels.embedding(batch, kernels.bind("embedding", x), 1.0), batch


def quantize(x: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Activations as the kernels take them: int8 [rows, groups, 32] and a scale [rows, groups]."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    peak = np.abs(groups).max(axis=2)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 1e-35)
    return np.rint(groups * inverse[..., None]).astype(np.int8), peak * np.float32(1 / 127)


def rounded(x: Floats) -> NDArray[np.float64]:
    """What the kernels take `x` for."""
    quants, scales = quantize(x)
    values = quants.astype(np.float64) * scales[..., None].astype(np.float64)
    return np.ascontiguousarray(values.reshape(len(x), -1)[:, : x.shape[1]])
