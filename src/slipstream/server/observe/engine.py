"""An engine that is watched: metrics and the log of requests see what passes, and nothing is changed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import Engine, EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import EngineUnavailableError, RequestError, SlipstreamError
from slipstream.metrics.serving import ServingMetrics
from slipstream.server.observe.log import RequestLog
from slipstream.server.observe.record import RequestRecord


class ObservedEngine:
    """Implements `protocol.Engine` over `inner`, which it does not own more than any caller does.

    For one event loop. How the answers reach their readers is seen by `HttpObserver`.
    """

    def __init__(
        self,
        inner: Engine,
        metrics: ServingMetrics,
        log: RequestLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._unix = unix

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        clock, metrics = self._clock, self._metrics
        record = RequestRecord.of(request, self._inner.stats(), now=clock(), unix=self._unix())
        self._log.add(record)
        outcome = "disconnect"  # unless the stream ends or breaks by itself
        try:
            async with closing(self._inner.generate(request)) as deltas:
                async for delta in deltas:
                    now = clock()
                    gap = record.deliver(delta, now)
                    if gap is not None:
                        metrics.inter_token_latency.observe(gap)
                    elif delta.token_ids:
                        metrics.time_to_first_token.observe(now - record.arrival)
                    if delta.finish_reason is not None:
                        outcome = delta.finish_reason
                        if delta.stats is not None:
                            metrics.completion(delta.stats, delta.finish_reason)
                    yield delta
        except SlipstreamError as error:
            early = record.first_token is None and isinstance(error, RequestError | EngineUnavailableError)
            outcome = "refused" if early else "error"
            record.error = str(error)
            metrics.rejected.inc(type(error).__name__)
            raise
        finally:
            self._end(record, outcome)

    @property
    def ready(self) -> bool:
        return self._inner.ready

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        return await self._inner.timeline(request_id)

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    def stats(self) -> EngineStats:
        return self._inner.stats()

    async def close(self) -> None:
        await self._inner.close()

    def _end(self, record: RequestRecord, outcome: str) -> None:
        now = self._clock()
        self._log.end(record, now, outcome)
        if outcome != "refused":
            self._metrics.e2e_latency.observe(now - record.arrival)
            self._metrics.params_n.observe(record.n)
            if record.max_tokens is not None:
                self._metrics.params_max_tokens.observe(record.max_tokens)


@asynccontextmanager
async def closing(deltas: AsyncIterator[OutputDelta]) -> AsyncIterator[AsyncIterator[OutputDelta]]:
    """Close a stream that is left early at once, not when it is collected: that is what aborts its request."""
    try:
        yield deltas
    finally:
        if isinstance(deltas, AsyncGenerator):
            await deltas.aclose()
