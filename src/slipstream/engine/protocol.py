"""The only thing that a server, a router or a benchmark knows of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from slipstream.config.decision import Decision
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.timeline import RequestTimeline
from slipstream.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class RequestSpeculation:
    """A request's wishes about drafts, which change its speed and never its tokens.

    mode: "off"; "auto": what the engine does for all; "ngram", "draft_model" or "draft_head": drafts by that one alone,
    refused where the engine has no such.
    num_tokens: the longest draft, at most the engine's.
    """

    mode: Literal["off", "auto", "ngram", "draft_model", "draft_head"] = "auto"
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as it enters an engine. `prompt` (text) is kept only to be shown again.

    `request_id` may be used again once the request has ended; while one with n > 1 runs, so do ID/1 ... ID/(n - 1).
    `priority`: lower is more important. `timeout`: seconds from arrival to the end. `cache_salt` separates
    the prefix caches of tenants. `tenant`: on whose account it runs; tenants that wait get equal shares.
    `speculative`: None is the engine's default.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: str | None = None
    priority: int = 0
    timeout: float | None = None
    cache_salt: str | None = None
    tenant: str | None = None
    speculative: RequestSpeculation | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is in force; fixed once the engine is ready, but for `pid` and the times after a restart."""

    model: str  # as it was named
    max_model_len: int
    vocab_size: int
    family: str = ""
    path: str = ""
    decisions: tuple[Decision, ...] = ()  # every setting: asked, effective, why
    warnings: tuple[str, ...] = ()  # of loading
    load_time: float = 0.0  # seconds, warm-up excluded
    warm_up_time: float = 0.0  # seconds
    pid: int = 0  # of the process that computes


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Totals are over the engine's life and count completions, n for one request; token counts exclude
    recomputation after preemption. Prompt tokens less cached tokens are those that were computed."""

    num_running: int = 0
    num_waiting: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_finished: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0  # owned by requests
    kv_blocks_cached: int = 0  # free, but still holding a reusable prefix
    prefix_cache_queries: int = 0  # tokens looked up
    prefix_cache_hits: int = 0  # tokens found
    max_num_seqs: int = 0  # in force now
    step_time: float = 0.0  # seconds, all steps
    forward_time: float = 0.0  # seconds inside the model
    num_queued_tokens: int = 0  # prompt tokens of the waiting requests
    num_shed: int = 0  # ended or refused because their deadline could not be met
    num_restarts: int = 0  # of the engine's process
    warm_up_time: float = 0.0  # seconds, before the engine was ready
    num_drafts: int = 0  # drafts that were verified
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # drafted tokens that became output
    accepted_per_position: tuple[int, ...] = ()  # of the drafts' first tokens, second tokens, ...
    time_saved: float = 0.0  # seconds, by drafts, of all requests together, estimated; below 0: lost
    speculation_warning: str = ""  # why speculation is of no use, once that is known
    num_store_tokens: int = 0  # of recent answers, held now to draft from
    num_store_draft_tokens: int = 0  # drafted tokens from there that were verified
    num_store_accepted_tokens: int = 0  # those of them that became output

    @property
    def kv_usage(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


class Engine(Protocol):
    """Lifecycle: usable once constructed; `close` may be called twice; after it `generate` raises EngineError.

    `generate` validates before any work and raises RequestError; the stream ends after a delta with a
    finish reason for each of the n completions. Leaving the stream early aborts the request. OverloadedError,
    DeadlineError and EngineUnavailableError carry `retry_after`. All of these come before the first delta.
    """

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now: started, warmed up, not broken, not closed."""
        ...

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]: ...

    async def abort(self, request_id: str) -> None: ...

    def stats(self) -> EngineStats: ...

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        """Where the time of a finished request went. None: unknown, not finished, or too many have finished since."""
        ...

    async def close(self) -> None: ...
