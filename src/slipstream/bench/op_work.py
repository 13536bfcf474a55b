"""What each op of a native program has to read and multiply, noted down while the program is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu.native import PackedMatrix, Program, ThreadPool
from slipstream.kv.spec import KV_DTYPE_BYTES

Unit = Literal["maddubs", "fma"]  # the ceiling that its multiplications run against


@dataclass(frozen=True, slots=True)
class Work:
    """Of one op in one step. Bytes are weights and KV, each read once; activations, which caches hold, are left out."""

    num_bytes: float
    macs: float
    unit: Unit


WorkOf = Callable[[ForwardBatch], Work]


class NotedProgram:
    """Stands in for a `Program` while it is built: passes every call on, and notes the work of what was added.

    `works` is in the order of `Program.profile()`; None for ops whose work is not worth counting or not known.
    """

    def __init__(self, pool: ThreadPool, instructions: str) -> None:
        self.program = Program(pool, instructions)
        self.works: list[WorkOf | None] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.program, name)
        describe = _DESCRIBE.get(name)

        def call(*arguments: Any) -> Any:
            before = self.program.num_ops
            result = method(*arguments)
            added = self.program.num_ops - before
            self.works += [None if describe is None else describe(*arguments)] * min(added, 1)
            self.works += [None] * (added - 1)
            return result

        return call if callable(method) else method


def _rows(batch: ForwardBatch, domain: int) -> int:
    return len(batch.logits_rows) if domain else batch.num_tokens


def _products(domain: int, matrices: list[PackedMatrix]) -> WorkOf:
    num_bytes = float(sum(each.nbytes for each in matrices))
    macs = float(sum(each.rows * each.cols for each in matrices))
    unit: Unit = "fma" if matrices[0].dense else "maddubs"
    return lambda batch: Work(num_bytes, macs * _rows(batch, domain), unit)


def _linear(domain: int, tiles: int, source: Any, segments: list[tuple[Any, ...]]) -> WorkOf:
    return _products(domain, [segment[0] for segment in segments])


def _linear_gated(domain: int, tiles: int, gate: PackedMatrix, up: PackedMatrix, *rest: Any) -> WorkOf:
    return _products(domain, [gate, up])


def _experts(top_k: int, kind: str, source: Any, routing: Any, out: Any, experts: list[tuple[Any, ...]]) -> WorkOf:
    """Each token multiplies by `top_k` experts. How many different ones a batch reads depends on its tokens; counted is
    what can be expected if all experts are equally likely."""
    count = len(experts)
    num_bytes = sum(each.nbytes for expert in experts for each in expert) / count
    macs = sum(each.rows * each.cols for expert in experts for each in expert) / count
    unit: Unit = "fma" if experts[0][0].dense else "maddubs"

    def work(batch: ForwardBatch) -> Work:
        read = count * (1 - (1 - top_k / count) ** batch.num_tokens)
        return Work(num_bytes * read, macs * top_k * batch.num_tokens, unit)

    return work


def _embed(table: PackedMatrix, *rest: Any) -> WorkOf:
    per_row = table.nbytes / table.rows
    return lambda batch: Work(per_row * batch.num_tokens, 0.0, "fma")


def _attention(num_heads: int, num_kv_heads: int, head_dim: int, scale: float, window: int, *rest: Any) -> WorkOf:
    dtype = next(each for each in rest if isinstance(each, str))
    per_token = 2 * num_kv_heads * head_dim * KV_DTYPE_BYTES[dtype]

    def work(batch: ForwardBatch) -> Work:
        seen = batch.positions.astype(np.int64) + 1  # keys of each query, its own included
        queries = np.diff(batch.query_start)
        read = batch.kv_len.astype(np.int64)
        if window:
            seen, read = np.minimum(seen, window), np.minimum(read, window + queries - 1)
        macs = 2.0 * num_heads * head_dim * float(seen.sum())
        return Work(float(per_token * (read.sum() + batch.num_tokens)), macs, "fma")

    return work


_DESCRIBE: dict[str, Callable[..., WorkOf]] = {
    "linear": _linear,
    "linear_gated": _linear_gated,
    "experts": _experts,
    "embed": _embed,
    "attention": _attention,
}
