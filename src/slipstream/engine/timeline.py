"""Where the time of one request went, in numbers that a person or `GET /requests/{id}` can read."""

from __future__ import annotations

from slipstream.engine.request import FinishReason
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class ChunkTiming:
    """One step that computed tokens of the prompt (or, after a preemption, computed tokens again)."""

    start: float  # seconds since arrival
    seconds: float  # the step's
    num_tokens: int  # of this request
    step_tokens: int  # of all requests in the step
    step_rows: int  # requests in the step, this one included; the others are its batch-mates
    recomputed: bool = False  # after a preemption


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """The steps after the first token, added up. `shared`: those that also computed prompt tokens of other requests."""

    num_steps: int = 0
    seconds: float = 0.0
    shared_steps: int = 0
    shared_seconds: float = 0.0
    slowest: float = 0.0  # seconds of one step
    mean_rows: float = 0.0  # requests per step, this one included


@dataclass(frozen=True, slots=True)
class PreemptionTiming:
    at: float  # seconds since arrival
    waited: float | None  # seconds until it ran again; None: it never did


@dataclass(frozen=True, slots=True)
class CompletionTimeline:
    """One of the n completions. Times in seconds; None: it did not get that far."""

    index: int
    num_prompt_tokens: int
    num_cached_tokens: int  # prompt tokens that the prefix cache or a sibling spared
    num_output_tokens: int
    queue_time: float | None  # arrival to first scheduled
    ttft: float | None
    e2e: float
    chunks: tuple[ChunkTiming, ...] = ()
    decode: DecodeTiming = DecodeTiming()
    preemptions: tuple[PreemptionTiming, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryTiming:
    """From the end of the step that made a delta until the caller took it, in seconds: a slow reader shows here."""

    num_deltas: int = 0
    total: float = 0.0
    slowest: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    request_id: str
    arrival: float  # seconds since 1970
    tenant: str | None
    priority: int
    timeout: float | None
    completions: tuple[CompletionTimeline, ...]
    delivery: DeliveryTiming = DeliveryTiming()
