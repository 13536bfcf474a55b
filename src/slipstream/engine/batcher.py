"""StepPlan -> ForwardBatch: the only place where a plan becomes index arrays."""

from __future__ import annotations

import numpy as np

from slipstream.engine.plan import StepPlan
from slipstream.kernels.batch import ForwardBatch


def build_batch(plan: StepPlan, block_size: int) -> ForwardBatch:
    """The complete batch of `plan`, rows in plan order.

    Raises ValueError if a row feeds no token, has too few blocks for its tokens, or wants more logits than it
    feeds tokens: each is a scheduler defect that would otherwise show as wrong text.
    """
    rows = plan.rows
    lengths = [len(row.tokens) for row in rows]
    for row, length in zip(rows, lengths, strict=True):
        end = row.start + length
        if length == 0:
            raise ValueError(f"row {row.request_id} feeds no token: logits come from fed positions only")
        if len(row.blocks) * block_size < end:
            raise ValueError(f"row {row.request_id} ends at {end} but owns {len(row.blocks)} blocks of {block_size}")
        if not 0 <= row.num_logits <= length:
            raise ValueError(f"row {row.request_id} wants {row.num_logits} logits of {length} tokens")
    query_start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    num_tokens = int(query_start[-1])
    block_table = np.full((len(rows), max((len(row.blocks) for row in rows), default=0)), -1, np.int32)
    token_ids = np.empty(num_tokens, np.int32)
    positions = np.empty(num_tokens, np.int32)
    slots = np.empty(num_tokens, np.int32)
    logits_rows: list[int] = []
    for index, row in enumerate(rows):
        first, last = int(query_start[index]), int(query_start[index + 1])
        block_table[index, : len(row.blocks)] = row.blocks
        token_ids[first:last] = row.tokens
        at = np.arange(row.start, row.start + lengths[index], dtype=np.int32)
        positions[first:last] = at
        slots[first:last] = block_table[index, at // block_size] * block_size + at % block_size
        logits_rows.extend(range(last - row.num_logits, last))
    return ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        query_start=query_start,
        kv_len=np.array([row.start + len(row.tokens) for row in rows], np.int32),
        block_table=block_table,
        logits_rows=np.array(logits_rows, np.int32),
    )
