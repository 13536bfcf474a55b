"""Keeps the timelines of finished requests: a step costs one entry, whatever its number of decoding rows."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import field
from math import inf

from slipstream.engine.plan import StepPlan
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.request import Request
from slipstream.engine.timeline import (
    ChunkTiming,
    CompletionTimeline,
    DecodeTiming,
    PreemptionTiming,
    RequestTimeline,
)
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    start: float
    seconds: float
    num_tokens: int
    num_rows: int
    prefills: int  # rows that computed prompt tokens, or computed again


@dataclass(slots=True)
class _Trace:
    """One completion. Steps are told by the number of their plan."""

    request: Request
    index: int
    chunks: list[tuple[int, int, bool]] = field(default_factory=list)  # step, tokens, computed before
    high: int = 0  # tokens that have been computed at some time
    first_token_step: int | None = None


@dataclass(slots=True)
class _Open:
    request: GenerationRequest
    arrival: float  # seconds since 1970
    completions: list[CompletionTimeline | None]


class TimelineRecorder:
    """`clock` is the one that the core gives to its scheduler; `wall` gives seconds since 1970.

    Keeps the last `max_requests` finished requests and the last `max_steps` steps. A request that took longer than
    that is told without the decode steps that have been forgotten.
    """

    def __init__(
        self,
        *,
        max_requests: int = 512,
        max_steps: int = 1 << 14,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._max_requests = max_requests
        self._max_steps = max_steps
        self._wall = wall
        self._steps: list[_Step] = []
        self._traces: dict[str, _Trace] = {}  # by scheduler request id
        self._open: dict[str, _Open] = {}
        self._finished: OrderedDict[str, RequestTimeline] = OrderedDict()

    def added(self, request: GenerationRequest, requests: Sequence[Request], *, waited: float = 0.0) -> None:
        """`waited`: seconds since it arrived."""
        self._open[request.request_id] = _Open(request, self._wall() - waited, [None] * len(requests))
        for index, each in enumerate(requests):
            self._traces[each.id] = _Trace(each, index)

    def stepped(self, plan: StepPlan, start: float, seconds: float) -> None:
        """Call it before `ended` of the requests that the step ended."""
        prefills = 0
        for row in plan.rows:
            fed = len(row.tokens) - row.num_draft
            if fed == 1 and row.start >= row.sampling.num_prompt_tokens:
                continue
            prefills += 1
            trace = self._traces.get(row.request_id)
            if trace is not None:
                trace.chunks.append((plan.step, fed, row.start < trace.high))
                trace.high = max(trace.high, row.start + fed)
                if row.samples and trace.first_token_step is None:
                    trace.first_token_step = plan.step
        self._steps.append(_Step(plan.step, start, seconds, plan.num_tokens, len(plan.rows), prefills))
        if len(self._steps) >= 2 * self._max_steps:
            del self._steps[: self._max_steps]

    def ended(self, request: Request, parent_id: str, num_output_tokens: int) -> None:
        trace, open_request = self._traces.pop(request.id, None), self._open.get(parent_id)
        if trace is None or open_request is None:
            return
        open_request.completions[trace.index] = self._completion(trace, num_output_tokens)
        done = [each for each in open_request.completions if each is not None]
        if len(done) < len(open_request.completions):
            return
        del self._open[parent_id]
        asked = open_request.request
        self._finished.pop(parent_id, None)
        self._finished[parent_id] = RequestTimeline(
            parent_id, open_request.arrival, asked.tenant, asked.priority, asked.timeout, tuple(done)
        )
        if len(self._finished) > self._max_requests:
            self._finished.popitem(last=False)

    def timeline(self, request_id: str) -> RequestTimeline | None:
        return self._finished.get(request_id)

    def _completion(self, trace: _Trace, num_output_tokens: int) -> CompletionTimeline:
        request, stats = trace.request, trace.request.stats
        chunks = [self._chunk(trace, *each) for each in trace.chunks]
        return CompletionTimeline(
            index=trace.index,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=stats.cached_tokens,
            num_output_tokens=num_output_tokens,
            queue_time=stats.queue_time,
            ttft=stats.ttft,
            e2e=0.0 if stats.finished is None else stats.finished - stats.arrival,
            chunks=tuple(chunk for chunk in chunks if chunk is not None),
            decode=self._decode(trace),
            preemptions=self._preemptions(trace),
            finish_reason=request.finish_reason,
            error=request.error,
        )

    def _from(self, number: int) -> int:
        """Where the kept steps with at least this number begin."""
        return bisect_left(self._steps, number, key=_number)

    def _chunk(self, trace: _Trace, number: int, num_tokens: int, recomputed: bool) -> ChunkTiming | None:
        index = self._from(number)
        if index == len(self._steps) or self._steps[index].number != number:
            return None
        step = self._steps[index]
        start = step.start - trace.request.arrival
        return ChunkTiming(start, step.seconds, num_tokens, step.num_tokens, step.num_rows, recomputed)

    def _decode(self, trace: _Trace) -> DecodeTiming:
        """Between the first token and the end a request is in every step, unless it is preempted or recomputes."""
        if trace.first_token_step is None:
            return DecodeTiming()
        steps = self._steps[self._from(trace.first_token_step + 1) :]
        if trace.request.stats.preempted_steps:
            away = {number for number, _, _ in trace.chunks}
            pauses = self._pauses(trace)
            steps = [
                step
                for step in steps
                if step.number not in away and not any(first <= step.number < last for first, last in pauses)
            ]
        if not steps:
            return DecodeTiming()
        seconds = [step.seconds for step in steps]
        shared = [step.seconds for step in steps if step.prefills]
        return DecodeTiming(
            num_steps=len(steps),
            seconds=sum(seconds),
            shared_steps=len(shared),
            shared_seconds=sum(shared),
            slowest=max(seconds),
            mean_rows=sum(step.num_rows for step in steps) / len(steps),
        )

    def _pauses(self, trace: _Trace) -> list[tuple[int, float]]:
        """For each preemption: the first step without the request, and the first one with it again."""
        resumed = [number for number, _, _ in trace.chunks]
        return [
            (step, next((number for number in resumed if number >= step), inf))
            for step in trace.request.stats.preempted_steps
        ]

    def _preemptions(self, trace: _Trace) -> tuple[PreemptionTiming, ...]:
        timings = []
        for first, last in self._pauses(trace):
            paused = self._start(first)
            resumed = None if last == inf else self._start(int(last))
            if paused is not None:
                waited = None if resumed is None else resumed - paused
                timings.append(PreemptionTiming(paused - trace.request.arrival, waited))
        return tuple(timings)

    def _start(self, number: int) -> float | None:
        index = self._from(number)
        return self._steps[index].start if index < len(self._steps) else None


def _number(step: _Step) -> int:
    return step.number
