"""What a scheduler tells: about one request after a step, and about itself."""

from __future__ import annotations

from slipstream.engine.request import FinishReason, Request
from slipstream.kv.manager import KVUsage
from slipstream.lean import dataclass
from slipstream.sampling.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """What a step brought one request. Exactly one update of every request has a `finish_reason`."""

    request: Request
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    complete: bool = False  # it stopped without a stop token: its grammar allows nothing more
    num_draft: int = 0  # tokens that were drafted and verified
    num_accepted: int = 0  # of `tokens`, so many were drafted: the first ones


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    step: int
    num_running: int
    num_waiting: int
    num_preempted: int  # since start
    max_num_seqs: int  # in force; lower than asked while preemptions are frequent
    kv: KVUsage
    num_queued_tokens: int = 0  # prompt tokens of the waiting requests
    num_shed: int = 0  # since start: refused or ended because their deadline could not be met
