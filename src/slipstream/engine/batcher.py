"""StepPlan -> ForwardBatch: the only place where a plan becomes index arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from slipstream.engine.plan import PlanRow, StepPlan
from slipstream.kernels.batch import ForwardBatch, Int32Array

FEW = 48  # tokens


def build_batch(plan: StepPlan, block_size: int) -> ForwardBatch:
    """The complete batch of `plan`; see `BatchBuilder.build`."""
    return BatchBuilder(block_size).build(plan)


class BatchBuilder:
    """Remembers the block table that it made last: most rows of a step have the blocks that they had in the one before,
    and turning long lists of blocks into arrays again and again would cost more with every token of context."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: list[tuple[int, ...]] = []
        self._table = np.empty((0, 0), np.int32)
        self._counting = np.zeros(1, np.int32)  # 0, 1, ...

    def build(self, plan: StepPlan) -> ForwardBatch:
        """The complete batch of `plan`, rows in plan order.

        Raises ValueError if a row feeds no token, has too few blocks for its tokens, or wants more logits than it
        feeds tokens: each is a scheduler defect that would otherwise show as wrong text.
        """
        return self._decodes(plan.rows) or self._few(plan.rows) or self._ragged(plan.rows)

    def _decodes(self, rows: Sequence[PlanRow]) -> ForwardBatch | None:
        """Of rows that feed one token each and want its logits; None if there are others. One pass."""
        size = self._block_size
        tokens, starts, slots, ends, blocks = [], [], [], [], []
        for row in rows:
            start, own = row.start, row.blocks
            if len(row.tokens) != 1 or row.num_logits != 1 or start >= len(own) * size:
                return None
            tokens.append(row.tokens[0])
            starts.append(start)
            slots.append(own[start // size] * size + start % size)
            ends.append(start + 1)
            blocks.append(own)
        count = self._count_to(len(tokens))
        return ForwardBatch(
            np.array(tokens, np.int32),
            np.array(starts, np.int32),
            np.array(slots, np.int32),
            count,
            np.array(ends, np.int32),
            self._block_table(blocks),
            count[:-1],
        )

    def _few(self, rows: Sequence[PlanRow]) -> ForwardBatch | None:
        """Of so few tokens that one by one takes less time than array by array; None if there are more."""
        size = self._block_size
        if sum([len(row.tokens) for row in rows]) > FEW:
            return None
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, ends = [0], []
        wanted: list[int] = []
        for row in rows:
            start, own, length = row.start, row.blocks, len(row.tokens)
            if length == 0 or len(own) * size < start + length or not 0 <= row.num_logits <= length:
                _refuse(row, size)
            tokens += row.tokens
            for position in range(start, start + length):
                positions.append(position)
                slots.append(own[position // size] * size + position % size)
            last = len(tokens)
            starts.append(last)
            ends.append(start + length)
            wanted += range(last - row.num_logits, last)
        return ForwardBatch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.array(slots, np.int32),
            np.array(starts, np.int32),
            np.array(ends, np.int32),
            self._block_table([row.blocks for row in rows]),
            np.array(wanted, np.int32),
        )

    def _ragged(self, rows: Sequence[PlanRow]) -> ForwardBatch:
        size = self._block_size
        lengths = [len(row.tokens) for row in rows]
        for row, length in zip(rows, lengths, strict=True):
            if length == 0 or len(row.blocks) * size < row.start + length or not 0 <= row.num_logits <= length:
                _refuse(row, size)
        block_table = self._block_table([row.blocks for row in rows])
        token_ids = np.array(list(chain.from_iterable([row.tokens for row in rows])), np.int32)
        starts = np.array([row.start for row in rows], np.int32)
        count = self._count_to(len(token_ids))
        wanted = [row.num_logits for row in rows]
        counts = np.array(lengths, np.int32)
        query_start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        positions = count[:-1] - np.repeat(query_start[:-1] - starts, counts)
        row_of = np.repeat(count[: len(rows)], counts)
        slots = block_table[row_of, positions // size] * size + positions % size
        kv_len = starts + counts
        if sum(wanted) == len(token_ids):
            logits_rows = count[:-1]
        else:
            ends = query_start[1:].tolist()
            ranges = [range(end - n, end) for end, n in zip(ends, wanted, strict=True)]
            logits_rows = np.array(list(chain.from_iterable(ranges)), np.int32)
        return ForwardBatch(token_ids, positions, slots, query_start, kv_len, block_table, logits_rows)

    def _count_to(self, last: int) -> Int32Array:
        """0, 1, ..., last."""
        if len(self._counting) <= last:
            self._counting = np.arange(2 * last, dtype=np.int32)
        return self._counting[: last + 1]

    def _block_table(self, blocks: list[tuple[int, ...]]) -> Int32Array:
        """[R, B], padded with -1; a new array unless it is the last one, since a batch never changes."""
        last = self._table
        if blocks == self._blocks:  # mostly the same objects, which is all that is then looked at
            return last
        width = max([len(each) for each in blocks], default=0)
        table = np.full((len(blocks), width), -1, np.int32)
        kept_rows, kept_width = min(len(table), len(last)), min(width, last.shape[1])
        table[:kept_rows, :kept_width] = last[:kept_rows, :kept_width]
        for index, each in enumerate(blocks):
            if index < kept_rows and each is self._blocks[index]:
                continue
            table[index, : len(each)] = each
            table[index, len(each) :] = -1
        self._blocks, self._table = blocks, table
        return table


def _refuse(row: PlanRow, block_size: int) -> None:
    length = len(row.tokens)
    if length == 0:
        raise ValueError(f"row {row.request_id} feeds no token: logits come from fed positions only")
    if len(row.blocks) * block_size < row.start + length:
        raise ValueError(
            f"row {row.request_id} ends at {row.start + length} but owns {len(row.blocks)} blocks of {block_size}"
        )
    raise ValueError(f"row {row.request_id} wants {row.num_logits} logits of {length} tokens")
