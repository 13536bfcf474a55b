"""What is known of where the time of one request went: the input of `diagnose`. In seconds, counted from arrival."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.engine.timeline import ChunkTiming, DecodeTiming, PreemptionTiming

NO_STEPS = DecodeTiming()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """`None`: that did not happen (yet), or nobody saw it. Arrival is that at the engine.

    `total` reaches to the last byte handed to the reader, `last_token` to the engine's end of the request. Of n
    completions the steps are those of the one that ended last. Without steps, what others caused cannot be told apart.
    """

    measured: bool = True  # whether the engine told anything of it
    outcome: str  # "running", a finish reason, "disconnect", "refused" or "error"
    total: float
    intake: float = 0.0  # before arrival: the server read, checked and tokenised
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    completions: int = 1
    queue: float | None = None  # arrival to the first step
    first_token: float | None = None
    last_token: float | None = None
    stream_wait: float = 0.0  # in which the answer waited for its reader, anywhere
    running_at_arrival: int = 0
    waiting_at_arrival: int = 0
    max_running_at_arrival: int = 0  # that could run at once then; 0: not known
    chunks: tuple[ChunkTiming, ...] = ()
    decode: DecodeTiming = NO_STEPS
    preemptions: tuple[PreemptionTiming, ...] = ()

    @property
    def recomputed_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks if chunk.recomputed)
