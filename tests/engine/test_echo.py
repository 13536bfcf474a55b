"""EchoEngine behaves as a real engine does, as far as its callers can see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.protocol import Engine, GenerationRequest
from slipstream.engine.queue import PriorityOrder, QueueFullError
from slipstream.errors import DeadlineError, EngineError, EngineUnavailableError, OverloadedError, RequestError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(name: str = "a", tokens: tuple[int, ...] = (1, 2, 3), **fields) -> GenerationRequest:
    own = {key: fields.pop(key) for key in ("tenant", "priority", "timeout") if key in fields}
    return GenerationRequest(name, tokens, SamplingParams(**fields), **own)


async def collect(engine: EchoEngine, asked: GenerationRequest) -> RequestOutput:
    output = RequestOutput.empty(asked.request_id, None, asked.prompt_token_ids, asked.params.n)
    async for delta in engine.generate(asked):
        output.add(delta)
    return output


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_repeats_the_prompt():
    output = asyncio.run(collect(EchoEngine(), request()))
    assert output.outputs[0].token_ids == [1, 2, 3]
    assert output.outputs[0].text == "<1><2><3>"
    assert output.outputs[0].finish_reason == "stop"
    assert output.finished


def test_max_tokens_and_n():
    output = asyncio.run(collect(EchoEngine(), request(max_tokens=2, n=2)))
    assert [completion.token_ids for completion in output.outputs] == [[1, 2], [1, 2]]
    assert {completion.finish_reason for completion in output.outputs} == {"length"}


def test_abort_ends_the_stream():
    async def scenario() -> list[str | None]:
        engine = EchoEngine()
        reasons = []
        async for delta in engine.generate(request()):
            reasons.append(delta.finish_reason)
            await engine.abort("a")
        assert engine.stats().num_running == 0
        return reasons

    assert asyncio.run(scenario()) == [None, "abort"]


def test_errors_are_typed():
    async def closed() -> None:
        engine: Engine = EchoEngine()
        assert engine.ready
        await engine.close()
        assert not engine.ready
        await collect(engine, request())

    with pytest.raises(EngineError, match="closed"):
        asyncio.run(closed())
    with pytest.raises(EngineError, match="crashed"):
        asyncio.run(collect(EchoEngine(fail_after=1), request()))
    with pytest.raises(RequestError, match="empty"):
        asyncio.run(collect(EchoEngine(), request(tokens=())))


def test_what_does_not_fit_waits_and_what_exceeds_the_queue_is_refused() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1, max_queued=2)
        async with contextlib.aclosing(engine.generate(request("a"))) as first:
            await anext(first)
            waiting = [asyncio.ensure_future(collect(engine, request(name))) for name in "bc"]
            await asyncio.sleep(0)
            assert (engine.stats().num_running, engine.stats().num_waiting, engine.stats().num_queued_tokens) == (
                1,
                2,
                6,
            )
            with pytest.raises(QueueFullError, match="2 requests are waiting"):
                await collect(engine, request("d"))
        assert [(await each).outputs[0].token_ids for each in waiting] == [[1, 2, 3]] * 2
        assert (engine.stats().num_running, engine.stats().num_waiting, engine.stats().num_finished) == (0, 0, 2)

    run(scenario)


def test_a_queue_full_of_tokens_takes_no_more() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1, max_queued_tokens=4)
        async with contextlib.aclosing(engine.generate(request("a"))) as first:
            await anext(first)
            long = asyncio.ensure_future(collect(engine, request("long", (1,) * 9)))
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="1 requests with 9 prompt tokens"):
                await collect(engine, request("b", (1,)))
        assert (await long).finished

    run(scenario)


def test_leaving_and_aborting_while_waiting_free_the_place() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1, max_queued=2)
        async with contextlib.aclosing(engine.generate(request("a"))) as first:
            await anext(first)
            left, aborted = (asyncio.ensure_future(collect(engine, request(name))) for name in "bc")
            await asyncio.sleep(0)
            left.cancel()
            await engine.abort("c")
            assert (await aborted).outputs[0].finish_reason == "abort"
            with pytest.raises(asyncio.CancelledError):
                await left
            assert engine.stats().num_waiting == 0

    run(scenario)


def test_tenants_take_turns() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1)
        ended: list[str] = []

        async def one(name: str, tenant: str) -> None:
            await collect(engine, request(name, tenant=tenant))
            ended.append(name)

        greedy = [asyncio.ensure_future(one(f"g{i}", "greedy")) for i in range(4)]
        await asyncio.sleep(0)
        modest = [asyncio.ensure_future(one(f"m{i}", "modest")) for i in range(2)]
        await asyncio.gather(*greedy, *modest)
        assert ended == ["g0", "m0", "g1", "m1", "g2", "g3"]

    run(scenario)


def test_the_important_go_first() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1, policy=PriorityOrder(None))
        ended: list[str] = []

        async def one(name: str, priority: int) -> None:
            await collect(engine, request(name, priority=priority))
            ended.append(name)

        await asyncio.gather(one("first", 2), one("low", 1), one("high", 0))
        assert ended == ["first", "high", "low"]

    run(scenario)


def test_deadlines_refuse_what_cannot_begin_and_end_what_has_begun() -> None:
    async def scenario() -> None:
        engine = EchoEngine(delay=0.05)
        with pytest.raises(DeadlineError):
            await collect(engine, request("hopeless", timeout=0.01))
        assert engine.stats().num_shed == 1
        output = await collect(engine, request("late", (1,) * 1000, timeout=0.2))
        assert output.outputs[0].finish_reason == "deadline"
        assert len(output.outputs[0].token_ids) < 5

    run(scenario)


def test_a_crash_ends_what_is_open_and_recovery_takes_requests_again() -> None:
    async def scenario() -> None:
        engine = EchoEngine(max_running=1)
        running = engine.generate(request("a"))
        await anext(running)
        waiting = asyncio.ensure_future(collect(engine, request("b")))
        await asyncio.sleep(0)
        engine.crash(retry_after=7.0)
        assert not engine.ready
        with pytest.raises(EngineError, match="crashed"):
            await anext(running)
        with pytest.raises(EngineError, match="crashed"):
            await waiting
        with pytest.raises(EngineUnavailableError) as caught:
            await collect(engine, request("c"))
        assert caught.value.retry_after == 7.0
        engine.recover()
        assert engine.ready
        assert (await collect(engine, request("a"))).finished
        assert engine.stats().num_restarts == 1

    run(scenario)


def test_timelines() -> None:
    async def scenario() -> None:
        engine = EchoEngine()
        await collect(engine, request("a", n=2, tenant="t"))
        timeline = await engine.timeline("a")
        assert timeline is not None
        assert (timeline.request_id, timeline.tenant) == ("a", "t")
        assert [(each.index, each.num_output_tokens, each.finish_reason) for each in timeline.completions] == [
            (0, 3, "stop"),
            (1, 3, "stop"),
        ]
        assert await engine.timeline("b") is None

    run(scenario)
