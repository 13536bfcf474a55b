"""From a model's forward to native calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu.graph import LOGITS, Graph, Node
from slipstream.kernels.cpu.lower import lower
from slipstream.kernels.cpu.native import Program, ThreadPool
from slipstream.kv.storage import KVStorage

Floats = NDArray[np.float32]


class RecordedModel:
    """model(batch, kv) -> logits [L, vocab] as numpy, for the one `kv` that it was recorded with. Of a model that gives
    a tuple, logits first, it gives a tuple, the others [T, n].

    Recording runs the model's forward once, here; a step is one native call without the GIL.

    Raises ConfigError for an op or a shape that has no native form.
    """

    def __init__(
        self,
        model: Callable[[ForwardBatch, KVStorage], Node | tuple[Node, ...]],
        kv: KVStorage,
        pool: ThreadPool,
        instructions: str,
    ) -> None:
        self._kv = kv
        results = model(_any_batch(), kv)
        output, *others = results if isinstance(results, tuple) else (results,)
        self._several = isinstance(results, tuple)
        self.program = Program(pool, instructions)
        lowered = lower(Graph(output, tuple(others)), self.program)
        self._result = lowered.output
        self._kept = [(buffer, node.columns, node.domain) for buffer, node in zip(lowered.kept, others, strict=True)]
        self._columns = output.columns
        self._domain = output.domain
        self._logits = np.empty((0, output.columns), np.float32)

    def __call__(self, batch: ForwardBatch, kv: KVStorage) -> Floats | tuple[Floats, ...]:
        """Raises ValueError for another `kv`, and when an index of the batch is out of range.

        Where the program writes logits itself, the next call overwrites them: a new array of this size would be new
        pages from the system at every step.
        """
        if kv is not self._kv:
            raise ValueError("a recorded model runs over the KV cache that it was recorded with")
        logits = self._first(batch)
        if not self._several:
            return logits
        return (logits, *[_copy(self.program, *each, batch) for each in self._kept])

    def _first(self, batch: ForwardBatch) -> Floats:
        if self._result is not None:
            return _run(self.program, self._result, self._columns, self._domain, batch)
        count = len(batch.logits_rows)
        if len(self._logits) < count:
            self._logits = np.empty((count, self._columns), np.float32)
        logits = self._logits[:count]
        _step(self.program, batch, logits)
        return logits


def evaluate(output: Node, pool: ThreadPool, instructions: str) -> Floats:
    """Computes one node with the batch that it was called with; compiles anew every time, so not for serving."""
    program = Program(pool, instructions)
    return _run(program, lower(Graph(output), program).output, output.columns, output.domain, output.batch)


def _run(program: Program, result: int | None, columns: int, domain: int, batch: ForwardBatch) -> Floats:
    """`result` is the buffer to copy from; None when the program writes its output itself."""
    logits = np.empty((len(batch.logits_rows), columns if result is None else 0), np.float32)
    _step(program, batch, logits)
    if result is None:
        return logits
    return _copy(program, result, columns, domain, batch)


def _copy(program: Program, buffer: int, columns: int, domain: int, batch: ForwardBatch) -> Floats:
    out = np.empty((len(batch.logits_rows) if domain == LOGITS else batch.num_tokens, columns), np.float32)
    program.copy_rows(buffer, out)
    return out


def _step(program: Program, batch: ForwardBatch, logits: Floats) -> None:
    program.run(
        batch.token_ids,
        batch.positions,
        batch.slots,
        batch.query_start,
        batch.kv_len,
        batch.block_table,
        batch.logits_rows,
        logits,
        batch.inputs,
    )


def _any_batch() -> ForwardBatch:
    """One token; a forward makes the same ops whatever the batch."""
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    return ForwardBatch(zero, zero, zero, np.array([0, 1], np.int32), one, zero[None], zero)
