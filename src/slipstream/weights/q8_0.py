"""Float32 matrices rounded to GGUF's Q8_0: blocks of 32 values, a float16 scale and an int8 for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


def to_q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bytes, flat, of a matrix [rows, columns], columns a multiple of 32. The largest of a block becomes +-127;
    each value moves by no more than half of its block's scale, and by what float16 takes from that.

    Raises ValueError for another shape, and for values beyond what such a scale can reach.
    """
    if values.ndim != 2 or values.shape[1] % BLOCK:
        raise ValueError(f"a matrix of {values.shape} has no whole blocks of {BLOCK} columns")
    blocks = values.reshape(-1, BLOCK)
    scales = (np.abs(blocks).max(axis=1) / np.float32(127)).astype(np.float32)
    if not np.all(scales <= np.finfo(np.float16).max):
        raise ValueError("a block holds values that no float16 scale reaches")
    stored = scales.astype(np.float16)
    # Scales that float16 rounds to nothing belong to values that are nothing beside those of other blocks.
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=stored > 0)
    packed = np.empty((len(blocks), 2 + BLOCK), np.uint8)
    packed[:, :2] = stored[:, None].view(np.uint8)
    packed[:, 2:] = np.rint(blocks * inverse[:, None]).astype(np.int8).view(np.uint8)
    return packed.reshape(-1)
