"""A minimal stand-in for the engine: keeps sequences in a paged cache and builds batches from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec
from slipstream.models.family import Model


class PagedRunner:
    """Feeds tokens of named sequences. `shuffle` hands the physical blocks out in a random order."""

    def __init__(
        self,
        model: Model,
        kernels: Kernels,
        *,
        block_size: int = 4,
        num_blocks: int = 64,
        shuffle: int | None = None,
        dtype: str = "float32",
    ) -> None:
        spec = kv_spec(model.config, block_size=block_size, dtype=dtype)
        self.kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
        self._model = model
        self._kernels = kernels
        order = np.arange(num_blocks)
        if shuffle is not None:
            order = np.random.default_rng(shuffle).permutation(order)
        self._free = order.tolist()
        self._blocks: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}

    def step(self, rows: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray[Any, Any]]:
        """Every row's next tokens in one batch -> the logits of all of them, [tokens, vocab] per row."""
        batch = self._batch(rows)
        logits = self._kernels.to_numpy(self._model(batch, self.kv)).copy()  # it holds until the next call
        assert logits.dtype == np.float32
        parts = np.split(logits, batch.query_start[1:-1])
        return dict(zip(rows, parts, strict=True))

    def _batch(self, rows: Mapping[str, Sequence[int]]) -> ForwardBatch:
        size = self.kv.spec.block_size
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths, tables = [0], [], []
        for name, tokens in rows.items():
            blocks = self._blocks.setdefault(name, [])
            start = self._computed.get(name, 0)
            stop = start + len(tokens)
            while len(blocks) * size < stop:
                blocks.append(self._free.pop(0))
            positions += range(start, stop)
            slots += [blocks[position // size] * size + position % size for position in range(start, stop)]
            starts.append(starts[-1] + len(tokens))
            lengths.append(stop)
            tables.append(list(blocks))
            self._computed[name] = stop
        width = max(len(table) for table in tables)
        return ForwardBatch(
            token_ids=np.array([token for tokens in rows.values() for token in tokens], dtype=np.int32),
            positions=np.array(positions, dtype=np.int32),
            slots=np.array(slots, dtype=np.int32),
            query_start=np.array(starts, dtype=np.int32),
            kv_len=np.array(lengths, dtype=np.int32),
            block_table=np.array([table + [-1] * (width - len(table)) for table in tables], dtype=np.int32),
            logits_rows=np.arange(starts[-1], dtype=np.int32),
        )


def run_whole(runner: PagedRunner, name: str, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    return runner.step({name: tokens})[name]


def run_chunks(runner: PagedRunner, name: str, tokens: Sequence[int], size: int) -> np.ndarray[Any, Any]:
    """The same tokens, at most `size` at a time."""
    parts = [runner.step({name: tokens[i : i + size]})[name] for i in range(0, len(tokens), size)]
    return np.concatenate(parts)
