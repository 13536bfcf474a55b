"""Single steps of the `cpu` backend, op by op, against what the machine can do, measured in the same minute.

The roofline model (Williams, Waterman and Patterson, CACM 52(4), 2009): an op cannot be faster than its bytes through
memory, nor than its multiply-adds through the arithmetic units; the ceilings are measured, not looked up.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, cast

import msgspec
import numpy as np

from slipstream.bench.op_work import NotedProgram
from slipstream.bench.steps import BLOCK, Step, step_batch
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu.graph import Graph
from slipstream.kernels.cpu.lower import lower
from slipstream.kernels.cpu.native import Program, ThreadPool, ceilings, kernel_sets
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec
from slipstream.models.family import Model

READ_BYTES = 256 << 20  # far more than any cache holds


class Ceilings(msgspec.Struct, frozen=True):
    """Bytes/s of memory, and multiply-adds/s of int8 and of float32; the better of before and after a step's runs."""

    read: float
    maddubs: float
    fma: float


class OpTotal(msgspec.Struct, frozen=True):
    """All ops of one name in a step. Each op's own best time; work is None where it is not counted."""

    name: str
    count: int
    seconds: float
    num_bytes: float | None
    macs: float | None
    read_share: float | None  # of the ceiling
    multiply_share: float | None


class StepResult(msgspec.Struct, frozen=True):
    """`floor` adds up every op's own best time: what a step takes on a machine that does nothing else. `ops` and
    `ceilings` are empty where the backend has no profile of its ops."""

    name: str
    sequences: int
    context: int
    tokens: int
    steps: int
    median: float
    best: float
    floor: float | None
    ops: tuple[OpTotal, ...]
    ceilings: Ceilings | None

    @property
    def num_tokens(self) -> int:
        return self.sequences * self.tokens

    def total(self, what: Literal["num_bytes", "macs"]) -> float:
        return sum(getattr(op, what) or 0.0 for op in self.ops)


def measure_ceilings(pool: ThreadPool) -> Ceilings:
    found = dict(ceilings(pool, kernel_sets()[0], READ_BYTES, 3))
    return Ceilings(found["read"], found["maddubs"], found["fma"])


def measure_native(model: Model, kernels: Kernels, pool: ThreadPool, step: Step, seconds: float) -> StepResult:
    """One kind of step over a model bound to the `cpu` backend, for so long after one warm-up; logits included."""
    batch = step_batch(step, model.config.vocab_size)
    spec = kv_spec(model.config, block_size=BLOCK, dtype="float16")
    kv = KVStorage(spec, int(batch.block_table.size), kernels.new_kv(spec, int(batch.block_table.size)))
    for layer in kv.layers:
        layer.cache[:] = np.float16(0.1).view(np.uint16)
    before = measure_ceilings(pool)
    noted = NotedProgram(pool, kernel_sets()[0])
    output = model(_one_token(), kv)
    result = lower(Graph(output), cast(Program, noted)).output
    program = noted.program
    logits = np.empty((len(batch.logits_rows), output.columns if result is None else 0), np.float32)
    best: np.ndarray[Any, np.dtype[np.float64]] | None = None
    names: list[str] = []

    def run() -> None:
        program.set_profiling(True)
        program.run(
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.query_start,
            batch.kv_len,
            batch.block_table,
            batch.logits_rows,
            logits,
        )

    def note() -> None:
        nonlocal best, names
        profile = program.profile()
        names = [name for name, _ in profile]
        own = np.array([taken for _, taken in profile])
        best = own if best is None else np.minimum(best, own)

    times = _timed(run, note, seconds)
    assert best is not None
    after = measure_ceilings(pool)
    limits = Ceilings(*(max(getattr(each, name) for each in (before, after)) for name in Ceilings.__struct_fields__))
    ops = _totals(names, best, noted, batch, limits)
    return _result(step, times, float(best.sum()), ops, limits)


def measure_plain(model: Model, kernels: Kernels, step: Step, seconds: float) -> StepResult:
    """The same for a backend without profiles: times of whole steps only."""
    batch = step_batch(step, model.config.vocab_size)
    spec = kv_spec(model.config, block_size=BLOCK)
    kv = KVStorage(spec, int(batch.block_table.size), kernels.new_kv(spec, int(batch.block_table.size)))
    times = _timed(lambda: kernels.to_numpy(model(batch, kv)), lambda: None, seconds)
    return _result(step, times, None, (), None)


def _timed(run: Callable[[], object], note: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each run, three at least, after one that is not counted; `note` is called behind each."""
    run()
    times: list[float] = []
    until = perf_counter() + seconds
    while len(times) < 3 or perf_counter() < until:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
        note()
    return times


def _totals(
    names: list[str],
    best: np.ndarray[Any, np.dtype[np.float64]],
    noted: NotedProgram,
    batch: ForwardBatch,
    limits: Ceilings,
) -> tuple[OpTotal, ...]:
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, []).append(place)
    found = []
    for name, places in groups.items():
        seconds = float(best[places].sum())
        works = [each(batch) for place in places if (each := noted.works[place]) is not None]
        known = len(works) == len(places) and seconds > 0
        needed = sum(work.macs / getattr(limits, work.unit) for work in works)
        num_bytes = sum(work.num_bytes for work in works)
        found.append(
            OpTotal(
                name,
                len(places),
                seconds,
                num_bytes if known else None,
                sum(work.macs for work in works) if known else None,
                num_bytes / limits.read / seconds if known else None,
                needed / seconds if known else None,
            )
        )
    return tuple(sorted(found, key=lambda op: -op.seconds))


def _result(
    step: Step, times: list[float], floor: float | None, ops: tuple[OpTotal, ...], limits: Ceilings | None
) -> StepResult:
    return StepResult(
        name=step.name,
        sequences=step.sequences,
        context=step.context,
        tokens=step.tokens,
        steps=len(times),
        median=statistics.median(times),
        best=min(times),
        floor=floor,
        ops=ops,
        ceilings=limits,
    )


def _one_token() -> ForwardBatch:
    """To record with; a forward makes the same ops whatever the batch."""
    return step_batch(Step("record", 1, 0, 1), 1)
