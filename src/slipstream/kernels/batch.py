"""The one thing a model's forward reads besides its weights and the KV cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.lean import dataclass

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A ragged batch of R rows and T tokens; complete when constructed, never changed after.

    Row r owns tokens query_start[r] : query_start[r+1]. It attends to kv_len[r] tokens of its own
    sequence, the ones of this batch included (they are the last of them). Prefill chunks, decodes
    and draft verification differ only in these numbers.
    """

    token_ids: Int32Array  # [T]
    positions: Int32Array  # [T] absolute position in the sequence
    slots: Int32Array  # [T] where the token's K and V are written: block id * block_size + offset
    query_start: Int32Array  # [R + 1]
    kv_len: Int32Array  # [R]
    block_table: Int32Array  # [R, B] block ids in sequence order, padded with -1
    logits_rows: Int32Array  # [L] indices into T whose logits are wanted, ascending
    inputs: Float32Array | None = None  # [T, n] what the tokens bring besides their ids, for models that read it

    def with_inputs(self, inputs: Float32Array) -> ForwardBatch:
        return ForwardBatch(
            self.token_ids,
            self.positions,
            self.slots,
            self.query_start,
            self.kv_len,
            self.block_table,
            self.logits_rows,
            inputs,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.kv_len)
