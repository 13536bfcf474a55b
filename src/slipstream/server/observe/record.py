"""What the server itself sees of one request: when it came, when tokens passed, how long its reader made them wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import EngineStats, GenerationRequest
from slipstream.server.request_ids import client_id, engine_id


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Instants are seconds on the clock of the observer, but for `arrived_at`, which is Unix time. Neither the prompt
    nor the answer is kept."""

    request_id: str  # the client's
    arrived_at: float
    arrival: float
    prompt_tokens: int
    n: int
    max_tokens: int | None
    tenant: str | None = None
    running_at_arrival: int = 0
    waiting_at_arrival: int = 0
    max_running_at_arrival: int = 0  # that could run at once then; 0: not known
    outcome: str = "running"  # then a finish reason, "disconnect", "refused" or "error"
    error: str | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    output_tokens: int = 0
    first_tokens: int = 0  # how many came with the first delivery
    longest_gap: float = 0.0  # between deliveries of tokens
    received: float | None = None  # the HTTP request began
    delivered: float | None = None  # the last byte was handed over
    stream_wait: float = 0.0  # in which the answer waited for its reader
    completions: list[CompletionStats] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerationRequest, stats: EngineStats, *, now: float, unix: float) -> RequestRecord:
        return cls(
            request_id=client_id(request.tenant, request.request_id),
            arrived_at=unix,
            arrival=now,
            prompt_tokens=len(request.prompt_token_ids),
            n=request.params.n,
            max_tokens=request.params.max_tokens,
            tenant=request.tenant,
            running_at_arrival=stats.num_running,
            waiting_at_arrival=stats.num_waiting,
            max_running_at_arrival=stats.max_num_seqs,
        )

    @property
    def engine_id(self) -> str:
        return engine_id(self.tenant, self.request_id)

    @property
    def elapsed_until(self) -> float | None:
        """When all was over; None while the engine works on it."""
        return None if self.end is None else max(self.end, self.delivered or self.end)

    def deliver(self, delta: OutputDelta, now: float) -> float | None:
        """Take a delta in; the seconds since the last tokens of any completion. None: the first, or no tokens."""
        if delta.stats is not None:
            self.completions.append(delta.stats)
        if not delta.token_ids:
            return None
        self.output_tokens += len(delta.token_ids)
        previous, self.last_token = self.last_token, now
        if previous is None:
            self.first_token, self.first_tokens = now, len(delta.token_ids)
            return None
        gap = now - previous
        self.longest_gap = max(self.longest_gap, gap)
        return gap
