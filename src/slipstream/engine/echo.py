"""An engine without a model: it repeats the prompt. The fake that everything downstream is tested with."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.queue import FirstComeFirstServed, QueuePolicy, WaitingQueue
from slipstream.engine.request import FinishReason, Request, make_request
from slipstream.engine.timeline import CompletionTimeline, RequestTimeline
from slipstream.errors import DeadlineError, EngineError, EngineUnavailableError, RequestError

_CONTEXT = _VOCABULARY = 1 << 20
_TIMELINES = 512
_CRASHED = "the engine crashed on purpose."


def spell_ids(token_ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in token_ids)


@dataclass(slots=True, eq=False)
class _Turn:
    """One request: it waits for its turn, then runs its completions one after the other."""

    asked: GenerationRequest
    queued: Request
    arrived: float  # seconds since 1970
    turn: asyncio.Future[None]
    aborted: bool = False
    queue_time: float = 0.0  # seconds


class EchoEngine:
    """Streams the prompt's tokens back, one per `delay` seconds, cut at max_tokens ("length") or at the end ("stop").

    max_running: requests at once (None: all); the others wait as in a real engine, by `policy`, in fair turns between
    tenants, within `max_queued` and `max_queued_tokens`. A request whose first token cannot come before its
    deadline is refused with DeadlineError; one that runs into it ends with reason "deadline".
    `fail_after`: raise EngineError after that many tokens, to test how callers see a crash; `crash` and `recover` do
    what a real engine's process does when it dies and comes back.

    All calls have to come from one event loop.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str] = spell_ids,
        *,
        delay: float = 0.0,
        fail_after: int | None = None,
        max_running: int | None = None,
        max_queued: int | None = None,
        max_queued_tokens: int | None = None,
        policy: QueuePolicy | None = None,
    ) -> None:
        self._decode = decode
        self._delay = delay
        self._fail_after = fail_after
        self._max_running = max_running
        self._queue = WaitingQueue(policy or FirstComeFirstServed(), max_queued, max_queued_tokens)
        self._open: dict[str, _Turn] = {}
        self._running: set[str] = set()
        self._closed = False
        self._retry_after: float | None = None  # while it is down
        self._num_added = self._num_restarts = self._num_shed = 0
        self._num_prompt_tokens = self._num_output_tokens = self._num_finished = 0
        self._timelines: OrderedDict[str, RequestTimeline] = OrderedDict()

    @property
    def ready(self) -> bool:
        return not self._closed and self._retry_after is None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(model="echo", max_model_len=_CONTEXT, vocab_size=_VOCABULARY)

    def crash(self, *, retry_after: float = 1.0) -> None:
        """Open requests end with EngineError, new ones with EngineUnavailableError, until `recover`."""
        self._retry_after = retry_after
        for turn in list(self._open.values()):
            if not turn.turn.done():
                turn.turn.set_exception(EngineError(_CRASHED, where=f"request {turn.asked.request_id}"))

    def recover(self) -> None:
        self._retry_after = None
        self._num_restarts += 1

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        turn = self._enter(request)
        completions: list[CompletionTimeline] = []
        try:
            self._start_next()
            waits = not turn.turn.done()
            await turn.turn
            turn.queue_time = time.monotonic() - turn.queued.arrival if waits else 0.0
            for index in range(request.params.n):
                async for delta in self._completion(turn, index):
                    if delta.finish_reason is not None:
                        completions.append(_timeline(turn, index, delta))
                    if len(completions) == request.params.n:
                        self._keep(turn, completions)
                    yield delta
        finally:
            self._leave(turn)

    async def abort(self, request_id: str) -> None:
        turn = self._open.get(request_id)
        if turn is not None:
            turn.aborted = True
            if not turn.turn.done():
                turn.turn.set_result(None)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_queued_tokens=self._queue.num_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_finished=self._num_finished,
            num_shed=self._num_shed,
            num_restarts=self._num_restarts,
            max_num_seqs=self._max_running or 0,
        )

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        return self._timelines.get(request_id)

    async def close(self) -> None:
        self._closed = True
        for request_id in list(self._open):
            await self.abort(request_id)

    # ---- a request comes, gets its turn, goes ----

    def _enter(self, asked: GenerationRequest) -> _Turn:
        where = f"request {asked.request_id}"
        if self._closed:
            raise EngineError("the engine is closed.", where=where)
        if self._retry_after is not None:
            raise EngineUnavailableError(
                "the engine is being restarted.", where=where, retry_after=self._retry_after, fix="Try again later."
            )
        if not asked.prompt_token_ids:
            raise RequestError("the prompt is empty.", where=asked.request_id)
        if asked.request_id in self._open:
            raise RequestError("a request with this id is running.", where=where)
        now = time.monotonic()
        queued = make_request(
            asked.request_id,
            asked.prompt_token_ids,
            asked.params,
            max_model_len=_CONTEXT,
            arrival=now,
            priority=asked.priority,
            deadline=None if asked.timeout is None else now + asked.timeout,
            tenant=asked.tenant,
        )
        self._queue.require_room(queued)
        if asked.timeout is not None and asked.timeout < self._delay:
            self._num_shed += 1
            raise DeadlineError(f"its first token takes {self._delay} s.", where=where)
        queued.order = self._num_added
        self._num_added += 1
        self._num_prompt_tokens += len(asked.prompt_token_ids) * asked.params.n
        turn = _Turn(asked, queued, time.time(), asyncio.get_running_loop().create_future())
        self._open[asked.request_id] = turn
        self._queue.shares.enter(asked.tenant)
        self._queue.push(queued)
        return turn

    def _start_next(self) -> None:
        now, started, tokens = time.monotonic(), 0, 0
        while len(self._queue) and (self._max_running is None or len(self._running) < self._max_running):
            request = next(iter(self._queue))
            self._queue.remove(request)
            self._queue.shares.charge_prompt(request.tenant, request.num_prompt_tokens)
            self._running.add(request.id)
            started, tokens = started + 1, tokens + request.num_prompt_tokens
            future = self._open[request.id].turn
            if not future.done():
                future.set_result(None)
        self._queue.rates.observe(now, started, tokens, len(self._queue))

    def _leave(self, turn: _Turn) -> None:
        request_id = turn.asked.request_id
        del self._open[request_id]
        self._running.discard(request_id)
        if turn.queued in self._queue:
            self._queue.remove(turn.queued)
        self._queue.shares.leave(turn.asked.tenant)
        if turn.turn.done() and not turn.turn.cancelled():
            turn.turn.exception()  # nobody may have waited for it any more
        self._start_next()

    async def _completion(self, turn: _Turn, index: int) -> AsyncIterator[OutputDelta]:
        request, where = turn.asked, f"request {turn.asked.request_id}"
        limit, deadline = request.params.max_tokens, turn.queued.deadline
        tokens = request.prompt_token_ids if limit is None else request.prompt_token_ids[:limit]
        for count, token in enumerate(tokens, 1):
            await asyncio.sleep(self._delay)
            if self._retry_after is not None or (self._fail_after is not None and count > self._fail_after):
                raise EngineError(_CRASHED, where=where)
            ended: FinishReason | None = None
            if turn.aborted:
                ended = "abort"
            elif deadline is not None and time.monotonic() >= deadline:
                ended = "deadline"
            if ended is not None:
                self._num_finished += 1
                stats = self._stats_of(turn, count - 1)
                yield OutputDelta(request.request_id, index, "", (), finish_reason=ended, stats=stats)
                return
            self._num_output_tokens += 1
            self._queue.shares.charge_output(request.tenant, 1)
            last = count == len(tokens)
            if last:
                ended = "length" if limit is not None and limit <= count else "stop"
                self._num_finished += 1
            final = self._stats_of(turn, count) if last else None
            text = self._decode((token,))
            yield OutputDelta(request.request_id, index, text, (token,), finish_reason=ended, stats=final)

    def _stats_of(self, turn: _Turn, num_tokens: int) -> CompletionStats:
        """In nominal times, so that two runs give the same."""
        return CompletionStats(
            num_prompt_tokens=len(turn.asked.prompt_token_ids),
            num_output_tokens=num_tokens,
            num_cached_tokens=0,
            num_preemptions=0,
            queue_time=turn.queue_time,
            ttft=turn.queue_time + self._delay if num_tokens else None,
            tpot=self._delay if num_tokens > 1 else None,
            e2e=turn.queue_time + self._delay * num_tokens,
        )

    def _keep(self, turn: _Turn, completions: list[CompletionTimeline]) -> None:
        asked = turn.asked
        self._timelines.pop(asked.request_id, None)
        self._timelines[asked.request_id] = RequestTimeline(
            asked.request_id, turn.arrived, asked.tenant, asked.priority, asked.timeout, tuple(completions)
        )
        if len(self._timelines) > _TIMELINES:
            self._timelines.popitem(last=False)


def _timeline(turn: _Turn, index: int, last: OutputDelta) -> CompletionTimeline:
    stats = last.stats
    assert stats is not None
    assert stats.e2e is not None
    return CompletionTimeline(
        index=index,
        num_prompt_tokens=stats.num_prompt_tokens,
        num_cached_tokens=0,
        num_output_tokens=stats.num_output_tokens,
        queue_time=stats.queue_time,
        ttft=stats.ttft,
        e2e=stats.e2e,
        finish_reason=last.finish_reason,
    )
