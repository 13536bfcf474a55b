"""An observed engine: what passes is unchanged; the log and the metrics know it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import EngineError, OverloadedError, RequestError
from slipstream.metrics.serving import ServingMetrics
from slipstream.sampling.params import SamplingParams
from slipstream.server.observe.engine import ObservedEngine
from slipstream.server.observe.log import RequestLog
from slipstream.server.observe.record import RequestRecord

pytestmark = pytest.mark.fast


class Watched:
    """An engine, observed; `clock` moves by one second per look."""

    def __init__(self, inner: EchoEngine | None = None) -> None:
        self.inner = inner or EchoEngine()
        self.metrics = ServingMetrics("echo", self.inner.stats)
        self.log = RequestLog(keep=3)
        self.now = 0.0
        self.engine = ObservedEngine(self.inner, self.metrics, self.log, clock=self.clock, unix=lambda: 1e9)

    @property
    def ended(self) -> list[RequestRecord]:
        return [record for record in self.log.recent("t") if record.end is not None]

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    async def all(self, request: GenerationRequest) -> list[OutputDelta]:
        return [delta async for delta in self.engine.generate(request)]


def request(
    request_id: str = "a", prompt: tuple[int, ...] = (1, 2, 3), *, tenant: str = "t", **params: Any
) -> GenerationRequest:
    return GenerationRequest(request_id, prompt, SamplingParams(**params), tenant=tenant)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_what_passes_is_unchanged_and_counted() -> None:
    watched = Watched()
    deltas = run(watched.all(request(max_tokens=5)))
    assert deltas == run(_all(EchoEngine(), request(max_tokens=5)))
    (record,) = watched.ended
    assert (record.request_id, record.tenant, record.outcome) == ("a", "t", "stop")
    assert (record.prompt_tokens, record.output_tokens, record.arrived_at) == (3, 3, 1e9)
    assert (record.arrival, record.first_token, record.last_token, record.end) == (1.0, 2.0, 4.0, 5.0)
    assert record.longest_gap == 1.0
    metrics = watched.metrics
    assert (metrics.time_to_first_token.count(), metrics.time_to_first_token.sum()) == (1, 1.0)
    assert (metrics.inter_token_latency.count(), metrics.inter_token_latency.sum()) == (2, 2.0)
    assert (metrics.e2e_latency.count(), metrics.e2e_latency.sum()) == (1, 4.0)
    assert metrics.request_success.value("stop") == 1
    assert (metrics.params_n.sum(), metrics.params_max_tokens.sum()) == (1, 5)


async def _all(engine: EchoEngine, asked: GenerationRequest) -> list[OutputDelta]:
    return [delta async for delta in engine.generate(asked)]


def test_leaving_early_closes_the_inner_stream_at_once() -> None:
    async def leave(watched: Watched) -> None:
        stream = watched.engine.generate(request())
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert watched.inner.stats().num_running == 0

    watched = Watched()
    run(leave(watched))
    (record,) = watched.ended
    assert record.outcome == "disconnect"
    assert record.output_tokens == 1
    assert record.end is not None


def test_a_refusal_is_counted_by_its_kind_and_has_no_latency() -> None:
    watched = Watched()
    with pytest.raises(RequestError):
        run(watched.all(request(prompt=())))
    (record,) = watched.ended
    assert (record.outcome, record.error) == ("refused", "a: the prompt is empty.")
    assert watched.metrics.rejected.value("RequestError") == 1
    assert watched.metrics.e2e_latency.count() == 0


def test_a_crash_is_no_refusal() -> None:
    watched = Watched(EchoEngine(fail_after=2))
    with pytest.raises(EngineError):
        run(watched.all(request()))
    assert watched.ended[0].outcome == "error"
    assert "crashed on purpose" in str(watched.ended[0].error)
    assert watched.metrics.e2e_latency.count() == 1


def test_overload_is_refused() -> None:
    class Full(EchoEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
            raise OverloadedError("the queue is full.", retry_after=2.0)
            yield  # a generator

    watched = Watched(Full())
    with pytest.raises(OverloadedError):
        run(watched.all(request()))
    assert watched.ended[0].outcome == "refused"
    assert watched.metrics.rejected.value("OverloadedError") == 1


def test_a_second_request_with_a_running_id_does_not_hide_the_first() -> None:
    async def twice(watched: Watched) -> None:
        first = watched.engine.generate(request())
        await anext(first)
        with pytest.raises(RequestError, match="is running"):
            await watched.all(request())
        open_record = watched.log.get("t", "a")
        assert open_record is not None
        assert open_record.outcome == "running"
        async for _ in first:
            pass
        assert open_record.outcome == "stop"
        assert watched.log.get("t", "a") is open_record

    run(twice(Watched()))


def test_the_log_keeps_open_requests_and_the_last_that_ended() -> None:
    async def many(watched: Watched) -> None:
        open_stream = watched.engine.generate(request("open"))
        await anext(open_stream)
        for number in range(5):
            await watched.all(request(f"r{number}"))
        assert [record.request_id for record in watched.log.recent("t")] == ["r4", "r3", "r2", "open"]
        await watched.all(request("r3", prompt=(1,)))  # again
        assert [record.request_id for record in watched.log.recent("t")] == ["r3", "r4", "r2", "open"]
        async for _ in open_stream:
            pass
        assert [record.request_id for record in watched.log.recent("t")] == ["open", "r3", "r4"]
        assert len(watched.log) == 3

    run(many(Watched()))


def test_the_rest_of_the_protocol_is_the_inner_engines() -> None:
    async def use(watched: Watched) -> None:
        assert watched.engine.ready
        assert watched.engine.info == watched.inner.info
        assert watched.engine.stats() == watched.inner.stats()
        assert await watched.engine.timeline("nobody") is None
        stream = watched.engine.generate(request())
        await anext(stream)
        await watched.engine.abort("a")
        assert [delta.finish_reason async for delta in stream] == ["abort"]
        await watched.engine.close()
        assert not watched.engine.ready

    run(use(Watched()))


def test_many_requests_of_one_tenant_do_not_push_out_those_of_another() -> None:
    async def many(watched: Watched) -> None:
        await watched.all(request("a", tenant="quiet"))
        for number in range(5):
            await watched.all(request(f"r{number}"))
        assert [record.request_id for record in watched.log.recent("quiet")] == ["a"]
        assert [record.request_id for record in watched.log.recent("t")] == ["r4", "r3"]
        for number in range(2):  # now the other has most
            await watched.all(request(f"s{number}", tenant="quiet"))
        assert [record.request_id for record in watched.log.recent("quiet")] == ["s1", "s0"]
        assert [record.request_id for record in watched.log.recent("t")] == ["r4"]

    run(many(Watched()))
