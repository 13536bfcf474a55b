"""Batches for calling one op by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.kernels.batch import ForwardBatch


def int32(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def token_batch(
    token_ids: Sequence[int], positions: Sequence[int] | None = None, logits_rows: Sequence[int] = ()
) -> ForwardBatch:
    """One row per token, for the ops that look at tokens one by one. Read-only, as a frozen batch may be."""
    n = len(token_ids)
    arrays = [
        int32(token_ids),
        int32(positions if positions is not None else [0] * n),
        int32(range(n)),
        int32(range(n + 1)),
        int32([1] * n),
        np.arange(n, dtype=np.int32)[:, None],
        int32(logits_rows),
    ]
    for array in arrays:
        array.flags.writeable = False
    return ForwardBatch(*arrays)
