"""One level of load: so many requests at once, or so many per second, measured within a window.

Load begins before the window (warm-up) and goes on after it until every request that started inside has been
answered: none is measured in the silence at the end, and none is cut off because it was slow.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time

from slipstream.bench.api import PATHS, Dialect
from slipstream.bench.connection import Client
from slipstream.bench.failure import FailedRequestError
from slipstream.bench.stream import StreamedAnswer
from slipstream.bench.workload import Item, Workload

LAG_INTERVAL = 0.02  # seconds between looks at the event loop
GIVE_UP = 100  # connections in a row that fail: the server is gone, and the level over


@dataclass(frozen=True, slots=True)
class Load:
    """`kind` concurrency: `value` requests at once. rate: Poisson arrivals, `value` per second. trace: the workload's
    own times, divided by `value`. `seconds` is the window, `warmup` the load that comes before; `max_requests` measures
    no more than so many, and ends the window when they have been answered."""

    kind: str
    value: float
    seconds: float
    warmup: float = 0.0
    max_requests: int | None = None
    timeout: float = 600.0  # of one request
    backoff: float = 0.1  # pause of a closed loop's client after a failure


@dataclass(slots=True)
class Sample:
    """One request as the client saw it; times on its clock. `measured`: it started within the window."""

    index: int
    item: Item
    due: float
    sent: float
    answer: StreamedAnswer
    measured: bool
    ended: float = 0.0
    error: str | None = None
    message: str | None = None


@dataclass(slots=True)
class LevelRun:
    """Everything that one level left behind. `samples` holds warm-up and what came after the window too."""

    load: Load
    start: float
    end: float
    samples: list[Sample] = field(default_factory=list)
    lags: array[float] = field(default_factory=lambda: array("d"))
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    read_seconds: float = 0.0
    reads: int = 0
    slowest_read: float = 0.0


class LevelRunner:
    """Runs one level. `level` picks the requests of the workload."""

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        workload: Workload,
        load: Load,
        *,
        level: int,
        seed: int,
        keep_text: bool = False,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self._client = client
        self._dialect = dialect
        self._workload = workload
        self._load = load
        self._level = level
        self._seed = seed
        self._keep_text = keep_text
        self._progress = progress
        self._clock = client.clock
        self._next = 0
        self._started = 0  # measured
        self._open = 0  # measured and not answered
        self._unreachable = 0  # in a row
        self._full = False  # as many were measured as are wanted
        self._finished = asyncio.Event()
        start = self._clock() + load.warmup
        self._run = LevelRun(load, start, start + load.seconds)

    async def run(self) -> LevelRun:
        run, meter = self._run, self._client.meter
        before = meter.seconds, meter.pieces
        meter.slowest = 0.0
        cpu, wall = process_time(), self._clock()
        generate = self._closed() if self._load.kind == "concurrency" else self._arrivals()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._watch()), group.create_task(generate)]
                await self._finished.wait()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise _leaf(errors) from None
        run.cpu_seconds, run.wall_seconds = process_time() - cpu, self._clock() - wall
        run.read_seconds, run.reads = meter.seconds - before[0], meter.pieces - before[1]
        run.slowest_read = meter.slowest
        return run

    async def _watch(self) -> None:
        """How late the event loop wakes up, and whether the level is over."""
        while True:
            asked = self._clock()
            await asyncio.sleep(LAG_INTERVAL)
            now = self._clock()
            if self._run.start <= now < self._run.end:
                self._run.lags.append(max(0.0, now - asked - LAG_INTERVAL))
            if self._progress is not None:
                self._progress(self._started, now - self._run.start)
            self._look_for_end(now)

    def _look_for_end(self, now: float) -> None:
        if self._open or self._finished.is_set() or not (self._full or now >= self._run.end):
            return
        self._run.end = min(self._run.end, now)
        self._finished.set()

    async def _closed(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(int(self._load.value)):
                group.create_task(self._one_client())

    async def _one_client(self) -> None:
        while not self._finished.is_set():
            sample = await self._send(self._begin(*self._take(), self._clock()))
            if sample.error is not None:
                await asyncio.sleep(self._load.backoff)

    async def _arrivals(self) -> None:
        rng = random.Random(f"arrivals {self._seed} {self._level}")
        first = due = self._clock()
        async with asyncio.TaskGroup() as group:
            while True:
                index, item = self._take()
                if self._load.kind == "trace":
                    if item.due is None:  # the trace is over
                        self._run.end = min(self._run.end, self._clock())
                        return
                    due = first + item.due / self._load.value
                else:
                    due += rng.expovariate(self._load.value)
                await asyncio.sleep(max(0.0, due - self._clock()))
                group.create_task(self._send(self._begin(index, item, due)))

    def _take(self) -> tuple[int, Item]:
        index = self._next
        self._next += 1
        return index, self._workload.item(self._level, index)

    def _begin(self, index: int, item: Item, due: float) -> Sample:
        """Counts the request as open; before its task runs, so that the level does not end in between."""
        run = self._run
        measured = run.start <= due < run.end and not self._full
        sample = Sample(index, item, due, self._clock(), StreamedAnswer(keep_text=self._keep_text), measured)
        run.samples.append(sample)
        if measured:
            self._open += 1
            self._started += 1
            self._full = self._started == self._load.max_requests
        return sample

    async def _send(self, sample: Sample) -> Sample:
        run, answer = self._run, sample.answer
        body = self._dialect.body(sample.item, self._seed + sample.index)
        sample.sent = self._clock()
        try:
            async with asyncio.timeout(self._load.timeout):
                await self._client.send("POST", PATHS[self._dialect.api], body, answer)
            answer.check()
        except FailedRequestError as failure:
            sample.error, sample.message = failure.kind, failure.what
        except TimeoutError:
            sample.error, sample.message = "timeout", f"no whole answer within {self._load.timeout:g} s."
        finally:
            sample.ended = self._clock()
            if sample.measured:
                self._open -= 1
        self._unreachable = self._unreachable + 1 if sample.error == "connect" else 0
        if self._unreachable == GIVE_UP:
            run.end = min(run.end, sample.ended)
        self._look_for_end(sample.ended)
        return sample


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first
