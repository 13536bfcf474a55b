"""What may start running: refusals at the door, blocks kept free, and how many requests run at once."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from slipstream.engine.request import Request
from slipstream.errors import RequestError
from slipstream.kv.manager import KVManager
from slipstream.lean import dataclass


class RequestTooLargeError(RequestError):
    """The request could never run with this configuration, however empty the engine is."""


def refuse_impossible(request: Request, kv: KVManager, max_num_batched_tokens: int, chunked_prefill: bool) -> None:
    """Raise RequestTooLargeError if the request alone would not fit; then no running request can be stuck."""
    where = f"request {request.id}"
    needed = kv.blocks_for(request.max_computed)
    if needed > kv.num_blocks:
        raise RequestTooLargeError(
            f"{request.num_prompt_tokens} prompt and up to {request.max_tokens} output tokens need {needed} KV blocks "
            f"of {kv.block_size} tokens, but the whole pool has {kv.num_blocks}.",
            where=where,
            fix="Shorten the prompt, lower max_tokens, or give the KV cache more memory.",
        )
    if not chunked_prefill and request.num_prompt_tokens > max_num_batched_tokens:
        raise RequestTooLargeError(
            f"the prompt has {request.num_prompt_tokens} tokens, but without chunked prefill it must fit into one "
            f"step of max_num_batched_tokens = {max_num_batched_tokens}.",
            where=where,
            fix="Switch enable_chunked_prefill on or raise max_num_batched_tokens.",
        )


def refuse_too_many(request: Request, n: int, max_queued: int | None) -> None:
    """Raise RequestTooLargeError if the n completions of `request` could never wait together."""
    if max_queued is not None and n > max_queued:
        raise RequestTooLargeError(
            f"n = {n} completions have to wait together, but max_queued = {max_queued} may wait at all.",
            where=f"request {request.id}",
            fix="Lower n or raise max_queued.",
        )


def watermark_blocks(num_blocks: int, share: float) -> int:
    """Blocks that admission leaves free for the growth of what already runs (it ignores them when nothing does)."""
    return math.ceil(num_blocks * share)


class SequenceLimit(Protocol):
    """How many requests may run at once; told about every step."""

    @property
    def limit(self) -> int: ...

    def observe(self, step: int, num_running: int, num_preempted: int) -> None: ...


class FixedLimit:
    def __init__(self, max_num_seqs: int) -> None:
        self._limit = max_num_seqs

    @property
    def limit(self) -> int:
        return self._limit

    def observe(self, step: int, num_running: int, num_preempted: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LimitChange:
    step: int
    before: int
    after: int
    why: str


class AdaptiveLimit:
    """Lowers the limit while preemptions are frequent (the work redone outweighs the larger batch); raises it again.

    `max_preemptions` within `window` steps lower it to a quarter below what runs; every `window` steps without
    any preemption raise it by an eighth of `max_num_seqs`. The last changes can be read from `changes`.
    """

    def __init__(self, max_num_seqs: int, *, window: int = 64, max_preemptions: int = 4) -> None:
        self._max = self._limit = max_num_seqs
        self._window = window
        self._max_preemptions = max_preemptions
        self._recent: deque[int] = deque()  # the step of each preemption in the window
        self._calm_since = 0
        self.changes: deque[LimitChange] = deque(maxlen=32)

    @property
    def limit(self) -> int:
        return self._limit

    def observe(self, step: int, num_running: int, num_preempted: int) -> None:
        if not num_preempted and not self._recent and self._limit == self._max:
            return
        self._recent.extend([step] * num_preempted)
        while self._recent and self._recent[0] <= step - self._window:
            self._recent.popleft()
        if num_preempted:
            self._calm_since = step
        if len(self._recent) >= self._max_preemptions:
            lowered = max(1, min(self._limit, num_running) * 3 // 4)
            self._change(step, lowered, f"{len(self._recent)} preemptions in {self._window} steps")
            self._recent.clear()
        elif self._limit < self._max and step - self._calm_since >= self._window:
            self._calm_since = step
            raised = min(self._max, self._limit + max(1, self._max // 8))
            self._change(step, raised, f"no preemption in {self._window} steps")

    def _change(self, step: int, after: int, why: str) -> None:
        if after != self._limit:
            self.changes.append(LimitChange(step, self._limit, after, why))
            self._limit = after
