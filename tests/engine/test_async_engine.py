"""AsyncEngine: streams, cancellation, failures and the end, over the fake model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from core_fakes import Bench, Letters, spell
from scheduling_fakes import sequential

from slipstream.config.types import EngineOptions
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.protocol import EngineStats, GenerationRequest
from slipstream.engine.queue import QueueFullError
from slipstream.errors import ConfigError, EngineError, InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast

PROMPT = (1, 2, 3)


def request(name: str, prompt: tuple[int, ...] = PROMPT, *, timeout: float | None = None, **params: object):
    values = {"max_tokens": 4, "seed": 0} | params
    return GenerationRequest(name, prompt, SamplingParams(**values), timeout=timeout)  # type: ignore[arg-type]


class Gate:
    """Holds the runner before each step until `open` is called; `entered` says that it waits."""

    def __init__(self, bench: Bench) -> None:
        self.entered, self._go = threading.Semaphore(0), threading.Semaphore(0)
        run = bench.runner.answer

        def answer(plan: StepPlan) -> StepResult:
            self.entered.release()
            assert self._go.acquire(timeout=20)
            return run(plan)

        bench.runner.answer = answer

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=20)

    def open(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._go.release()


def serve(bench: Bench, scenario: Callable[[AsyncEngine], Awaitable[None]]) -> AsyncEngine:
    """Run a scenario on a new engine over the bench's core, close it, and prove that nothing is left."""

    async def main() -> AsyncEngine:
        engine = AsyncEngine(bench.core)
        try:
            await asyncio.wait_for(scenario(engine), 30)
        finally:
            await engine.close()
        return engine

    engine = asyncio.run(main())
    if engine._failure is None:
        bench.core.check_integrity()
        assert (bench.core.stats().kv_blocks_used, list(bench.core.open_request_ids)) == (0, [])
    return engine


async def collect(engine: AsyncEngine, item: GenerationRequest) -> list[OutputDelta]:
    return [delta async for delta in engine.generate(item)]


def tokens(deltas: list[OutputDelta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


def test_many_streams_at_once() -> None:
    bench = Bench(tokenizer=Letters(), max_num_seqs=3)

    async def scenario(engine: AsyncEngine) -> None:
        results = await asyncio.gather(*(collect(engine, request(str(i), seed=i, n=1 + i % 2)) for i in range(8)))
        for i, deltas in enumerate(results):
            for index in range(1 + i % 2):
                assert tokens(deltas, index) == sequential(PROMPT, 4, seed=i + index)
            assert "".join(d.text for d in deltas if d.index == 0) == spell(sequential(PROMPT, 4, seed=i))
            assert sum(delta.finish_reason is not None for delta in deltas) == 1 + i % 2

    engine = serve(bench, scenario)
    assert (engine.stats().num_finished, engine.stats().num_output_tokens, engine.stats().num_running) == (12, 48, 0)


class Grammars:
    """Compiles nothing, and that only when it may."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Semaphore(0), threading.Event()

    def compile(self, spec: GrammarSpec) -> None:
        self.entered.release()
        assert self.go.wait(20)


def test_requests_that_are_being_prepared_count_as_waiting() -> None:
    bench, grammars = Bench(max_queued=2), Grammars()
    bench.core._grammars = grammars  # type: ignore[assignment]
    spec = GrammarSpec.regex("a")

    async def scenario(engine: AsyncEngine) -> None:
        first, left = (asyncio.create_task(collect(engine, request(name, grammar=spec))) for name in "ab")
        for _ in range(2):
            assert await asyncio.to_thread(grammars.entered.acquire, timeout=20)
        with pytest.raises(QueueFullError):
            await collect(engine, request("c", grammar=spec))
        with pytest.raises(QueueFullError):
            await collect(engine, request("d"))
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert tokens(await collect(engine, request("e"))) == sequential(PROMPT, 4)
        grammars.go.set()
        assert tokens(await first) == sequential(PROMPT, 4)
        assert bench.core.stats().num_waiting == 0

    serve(bench, scenario)


def test_refusals_come_before_any_work() -> None:
    bench = Bench()

    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidParamsError, match="request a: the prompt is empty"):
            await collect(engine, request("a", ()))
        assert tokens(await collect(engine, request("a"))) == sequential(PROMPT, 4)

    serve(bench, scenario)
    assert len(bench.runner.plans) == 4


def test_a_full_queue_and_a_running_id_refuse_one_stream_only() -> None:
    bench = Bench(max_num_seqs=1, max_queued=1)
    gate = Gate(bench)

    async def scenario(engine: AsyncEngine) -> None:
        first = asyncio.ensure_future(collect(engine, request("a")))
        await gate.wait()
        second = asyncio.ensure_future(collect(engine, request("b")))
        third = asyncio.ensure_future(collect(engine, request("c")))
        same = asyncio.ensure_future(collect(engine, request("a")))
        await asyncio.sleep(0)
        gate.open(100)
        with pytest.raises(QueueFullError):
            await third
        with pytest.raises(InvalidParamsError, match="is running"):
            await same
        assert tokens(await first) == tokens(await second) == sequential(PROMPT, 4)

    serve(bench, scenario)


def test_leaving_a_stream_aborts_its_request_and_its_id_is_free() -> None:
    bench = Bench()
    gate = Gate(bench)
    gate.open()

    async def scenario(engine: AsyncEngine) -> None:
        async with contextlib.aclosing(engine.generate(request("a", max_tokens=150))) as stream:
            async for _ in stream:
                break
        gate.open(100)
        assert tokens(await collect(engine, request("a"))) == sequential(PROMPT, 4)

    serve(bench, scenario)
    assert len(bench.runner.plans) <= 2 + 4


def test_a_cancelled_task_aborts_its_request() -> None:
    bench = Bench()
    gate = Gate(bench)

    async def scenario(engine: AsyncEngine) -> None:
        task = asyncio.ensure_future(collect(engine, request("a", max_tokens=150)))
        await gate.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open(100)
        assert tokens(await collect(engine, request("b"))) == sequential(PROMPT, 4)

    serve(bench, scenario)
    assert len(bench.runner.plans) <= 6


def test_abort_ends_the_stream_of_whoever_has_the_request() -> None:
    bench = Bench()
    gate = Gate(bench)

    async def scenario(engine: AsyncEngine) -> None:
        task = asyncio.ensure_future(collect(engine, request("a", max_tokens=150, n=2)))
        await gate.wait()
        await engine.abort("a")
        await engine.abort("unknown")
        gate.open(100)
        deltas = await task
        assert sorted((d.index, d.finish_reason) for d in deltas if d.finish_reason) == [(0, "abort"), (1, "abort")]

    serve(bench, scenario)


def test_deadlines_reach_the_stream() -> None:
    bench = Bench()

    async def scenario(engine: AsyncEngine) -> None:
        gate = Gate(bench)
        task = asyncio.ensure_future(collect(engine, request("a", max_tokens=150, timeout=5.0)))
        await gate.wait()
        bench.clock.now = 6.0
        gate.open(100)
        deltas = await task
        assert (tokens(deltas), deltas[-1].finish_reason) == (sequential(PROMPT, 1), "deadline")

    serve(bench, scenario)


def test_a_failed_step_ends_its_streams_with_an_error_and_the_engine_goes_on() -> None:
    bench = Bench()
    bench.runner.raises = [ValueError("boom")]

    async def scenario(engine: AsyncEngine) -> None:
        [delta] = await collect(engine, request("a"))
        assert (delta.finish_reason, delta.error) == ("error", "the step failed: ValueError: boom")
        assert tokens(await collect(engine, request("a"))) == sequential(PROMPT, 4)

    serve(bench, scenario)


@pytest.mark.parametrize("defect", [StepResult(1, ()), SystemExit("gone")])
def test_a_broken_core_fails_every_stream_and_every_later_call(defect: object) -> None:
    bench = Bench()
    gate = Gate(bench)
    waiting = bench.runner.answer

    def answer(plan: StepPlan) -> StepResult:
        waiting(plan)
        if isinstance(defect, BaseException):
            raise defect
        return defect  # type: ignore[return-value]

    bench.runner.answer = answer

    async def scenario(engine: AsyncEngine) -> None:
        tasks = [asyncio.ensure_future(collect(engine, request(name))) for name in "ab"]
        await gate.wait()
        gate.open(100)
        for task in tasks:
            with pytest.raises(EngineError, match="the engine has stopped"):
                await task
        with pytest.raises(EngineError, match="the engine has stopped"):
            await collect(engine, request("c"))
        await engine.abort("a")

    engine = serve(bench, scenario)
    assert engine._failure is not None


def test_close_ends_open_streams_and_later_calls_say_so() -> None:
    bench = Bench()
    gate = Gate(bench)

    async def scenario(engine: AsyncEngine) -> None:
        running = asyncio.ensure_future(collect(engine, request("a", max_tokens=150)))
        await gate.wait()
        closing = [asyncio.ensure_future(engine.close()) for _ in range(2)]
        await asyncio.sleep(0)
        gate.open(1000)
        await asyncio.gather(*closing)
        assert (await running)[-1].finish_reason == "abort"
        with pytest.raises(EngineError, match="request b: the engine is closed"):
            await collect(engine, request("b"))
        await engine.abort("a")

    engine = serve(bench, scenario)
    assert engine.stats().num_running == 0
    assert not engine._thread.is_alive()


def test_a_stream_whose_event_loop_is_gone_is_aborted() -> None:
    bench = Bench()
    gate = Gate(bench)
    engine = AsyncEngine(bench.core)
    loop = asyncio.new_event_loop()
    stream = engine.generate(request("a", max_tokens=150))
    gate.open()
    assert loop.run_until_complete(anext(stream)).token_ids == tuple(sequential(PROMPT, 1))
    loop.close()
    gate.open(1000)

    async def other() -> None:
        assert tokens(await collect(engine, request("b"))) == sequential(PROMPT, 4)
        await engine.close()

    asyncio.run(other())
    bench.core.check_integrity()
    assert len(bench.runner.plans) < 20
    assert not bench.core.open_request_ids


def test_two_event_loops_share_an_engine() -> None:
    bench = Bench()
    engine = AsyncEngine(bench.core)
    results: dict[str, list[int]] = {}

    def client(name: str) -> None:
        results[name] = tokens(asyncio.run(collect(engine, request(name, max_tokens=20))))

    threads = [threading.Thread(target=client, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(engine.close())
    assert results == dict.fromkeys("abc", sequential(PROMPT, 20))


def test_two_engines_in_one_process() -> None:
    benches = Bench(), Bench()

    async def main() -> None:
        engines = [AsyncEngine(bench.core) for bench in benches]
        calls = [collect(engine, request(str(i), seed=i)) for i in range(4) for engine in engines]
        for i, deltas in enumerate(await asyncio.gather(*calls)):
            assert tokens(deltas) == sequential(PROMPT, 4, seed=i // 2)
        for engine in engines:
            await engine.close()

    asyncio.run(main())


def test_a_forked_process_is_told_that_the_engine_stayed_behind() -> None:
    async def ask(engine: AsyncEngine) -> str:
        with pytest.raises(EngineError) as caught:
            await asyncio.wait_for(collect(engine, request("a")), timeout=20)
        await engine.close()
        return caught.value.what

    engine = AsyncEngine(Bench().core)
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # forking with threads, from 3.12 on
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, asyncio.run(ask(engine)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        assert said.read() == b"the engine works in another process, which this one was forked from."
    os.waitpid(child, 0)
    assert len(asyncio.run(collect(engine, request("a")))) == 4
    asyncio.run(engine.close())


def test_load_takes_what_llm_takes_and_brings_its_tokenizer(tiny_folder: Path) -> None:
    async def scenario() -> tuple[list[int], EngineStats]:
        engine = AsyncEngine.load(str(tiny_folder), num_threads=1, num_blocks=32)
        assert engine.tokenizer is not None
        ids = tuple(engine.tokenizer.encode("hello"))
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        tokens: list[int] = []
        async for delta in engine.generate(GenerationRequest("a", ids, params)):
            tokens += delta.token_ids
        stats = engine.stats()  # the stream has ended, so these must say so at once
        timeline = await engine.timeline("a")
        assert timeline is not None
        assert timeline.delivery.num_deltas == timeline.completions[0].num_output_tokens == 4
        assert (engine.ready, engine.info.max_model_len) == (True, 256)
        assert engine.info.warm_up_time == stats.warm_up_time > 0.0
        with pytest.raises(InvalidParamsError, match="prompt_token_ids holds text"):
            await anext(engine.generate(GenerationRequest("b", "hello", params)))  # type: ignore[arg-type, type-var]
        await engine.close()
        return tokens, stats

    tokens, stats = asyncio.run(scenario())
    assert len(tokens) == 4
    assert (stats.num_running, stats.num_finished, stats.num_output_tokens) == (0, 1, 4)
    with pytest.raises(ConfigError, match="settings go into the EngineOptions"):
        AsyncEngine.load(EngineOptions.from_flat(model="x"), num_threads=1)
