"""The scheduler's settings, in force."""

from __future__ import annotations

from slipstream.engine.objective import Objective
from slipstream.errors import ConfigError
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Raises ConfigError naming a field out of range."""

    max_num_batched_tokens: int = 4096  # fed per step, all rows together
    max_num_seqs: int = 64  # running at once
    enable_chunked_prefill: bool = True
    max_prefill_chunk: int | None = None  # tokens of one row; None: bounded by the step alone
    tpot_objective: Objective = None  # seconds per step while anything decodes; None: off
    min_prefill_chunk: int = 16  # tokens that a prompt gets in a step whatever the objective; it always advances
    watermark: float = 0.01  # share of the blocks that admission leaves free
    max_queued: int | None = None  # new requests waiting; None: no bound
    max_queued_tokens: int | None = None  # their prompt tokens together; an empty queue takes any request
    max_preemptions: int = 3  # after so many a request is protected
    max_wait: float = 30.0  # seconds; one that waited longer for its first step is protected

    def __post_init__(self) -> None:
        for name in (
            "max_num_batched_tokens",
            "max_num_seqs",
            "max_prefill_chunk",
            "min_prefill_chunk",
            "max_queued_tokens",
            "max_preemptions",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"must be at least 1, not {value}.", where=name)
        if self.max_queued is not None and self.max_queued < 0:
            raise ConfigError(f"must not be negative, but is {self.max_queued}.", where="max_queued")
        if self.tpot_objective not in (None, "auto") and not float(self.tpot_objective) > 0.0:
            raise ConfigError(f"must be above 0 seconds, not {self.tpot_objective}.", where="tpot_objective")
        if self.tpot_objective is not None and not self.enable_chunked_prefill:
            raise ConfigError(
                "has no effect while enable_chunked_prefill is off.",
                where="tpot_objective",
                fix="Set one of the two only.",
            )
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"must be at least 0 and below 1, not {self.watermark}.", where="watermark")
        if not self.max_wait >= 0.0:
            raise ConfigError(f"must not be negative, but is {self.max_wait}.", where="max_wait")
