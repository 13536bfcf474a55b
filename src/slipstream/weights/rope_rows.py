"""llama.cpp's row order for rotary projections, and back.

Hugging Face rotates dimension i of a head with dimension i + head_dim / 2; llama.cpp's Llama graph rotates
neighbours, so its converter interleaves the two halves of every head's rows in the Q and K projections.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rope_rows_to_halves(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the interleaving of `values` [num_heads * head_dim, ...] (weight or bias); a new contiguous array."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
