"""What `GET /requests/{id}` answers: the server's record and the engine's timeline put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipstream.engine.timeline import CompletionTimeline, RequestTimeline
from slipstream.server.autopsy.diagnose import Cause, diagnose
from slipstream.server.autopsy.split import Split, split
from slipstream.server.autopsy.timeline import Timeline
from slipstream.server.observe.record import RequestRecord


@dataclass(frozen=True, slots=True)
class RequestReport:
    """`arrived_at`: Unix time. `parts` add up to `seconds`; None while they are not known. `steps`: the engine's
    timeline, only where one request is asked for."""

    id: str
    arrived_at: float
    outcome: str
    error: str | None
    seconds: float
    ttft: float | None
    tokens_per_second: float | None  # after the first token, all completions together
    longest_gap: float
    stream_wait: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    n: int
    preemptions: int
    parts: Split | None
    cause: Cause
    steps: RequestTimeline | None = None


def report(record: RequestRecord, engine: RequestTimeline | None, now: float, *, steps: bool = False) -> RequestReport:
    """`now` is on the clock of the record."""
    timeline = timeline_of(record, engine, now)
    known = timeline.measured and timeline.outcome != "refused"
    rate = None
    if record.first_token is not None and record.last_token is not None and record.last_token > record.first_token:
        rate = (record.output_tokens - record.first_tokens) / (record.last_token - record.first_token)
    return RequestReport(
        id=record.request_id,
        arrived_at=record.arrived_at,
        outcome=record.outcome,
        error=record.error,
        seconds=timeline.intake + timeline.total,
        ttft=None if record.first_token is None else record.first_token - record.arrival + timeline.intake,
        tokens_per_second=rate,
        longest_gap=record.longest_gap,
        stream_wait=record.stream_wait,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=timeline.cached_tokens,
        output_tokens=record.output_tokens,
        n=record.n,
        preemptions=len(timeline.preemptions),
        parts=split(timeline) if known else None,
        cause=diagnose(timeline),
        steps=replace(engine, request_id=record.request_id) if steps and engine is not None else None,
    )


def timeline_of(record: RequestRecord, engine: RequestTimeline | None, now: float) -> Timeline:
    """Of n completions, the one that ended last decides. The engine's timeline knows more than its statistics."""
    until = record.elapsed_until
    total = (now if until is None else until) - record.arrival
    intake = 0.0 if record.received is None else record.arrival - record.received
    if engine is not None and engine.completions:
        return _from_engine(record, max(engine.completions, key=lambda each: each.e2e), total, intake)
    last = max(record.completions, key=lambda each: each.e2e or 0.0, default=None)
    return Timeline(
        measured=last is not None and record.end is not None,
        outcome=record.outcome,
        total=total,
        intake=intake,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=last.num_cached_tokens if last else 0,
        output_tokens=record.output_tokens,
        completions=record.n,
        queue=last.queue_time if last else None,
        first_token=last.ttft if last else None,
        last_token=last.e2e if last else None,
        stream_wait=record.stream_wait,
        running_at_arrival=record.running_at_arrival,
        waiting_at_arrival=record.waiting_at_arrival,
        max_running_at_arrival=record.max_running_at_arrival,
    )


def _from_engine(record: RequestRecord, last: CompletionTimeline, total: float, intake: float) -> Timeline:
    return Timeline(
        outcome=record.outcome,
        total=max(total, last.e2e),
        intake=intake,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=last.num_cached_tokens,
        output_tokens=record.output_tokens,
        completions=record.n,
        queue=last.queue_time,
        first_token=last.ttft,
        last_token=last.e2e,
        stream_wait=record.stream_wait,
        running_at_arrival=record.running_at_arrival,
        waiting_at_arrival=record.waiting_at_arrival,
        max_running_at_arrival=record.max_running_at_arrival,
        chunks=last.chunks,
        decode=last.decode,
        preemptions=last.preemptions,
    )
