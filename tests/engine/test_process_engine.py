"""ProcessEngine behaves as any engine does: streams, refusals, cancellation, the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from core_fakes import spell
from process_harness import PROMPT, collect, is_alive, make, request, tokens, until, use
from scheduling_fakes import sequential

from slipstream.engine.process.engine import ProcessEngine
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.protocol import Engine, GenerationRequest
from slipstream.engine.queue import QueueFullError
from slipstream.errors import ConfigError, ContextLengthError, EngineError, InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    made = make(settings={"max_num_seqs": 8}, blocks=200)
    yield made
    asyncio.run(made.close())


def test_many_streams_at_once(engine: ProcessEngine) -> None:
    async def scenario() -> None:
        before = engine.stats()
        results = await asyncio.gather(*(collect(engine, request(str(i), seed=i, n=1 + i % 2)) for i in range(20)))
        for i, deltas in enumerate(results):
            for index in range(1 + i % 2):
                assert tokens(deltas, index) == sequential(PROMPT, 4, seed=i + index)
                assert [d.finish_reason for d in deltas if d.index == index][-1] == "length"
            assert "".join(d.text for d in deltas if d.index == 0) == spell(sequential(PROMPT, 4, seed=i))
            assert {d.request_id for d in deltas} == {str(i)}
        stats = engine.stats()
        assert (stats.num_running, stats.num_finished - before.num_finished) == (0, 30)
        assert (stats.num_output_tokens - before.num_output_tokens, stats.num_restarts) == (120, 0)

    asyncio.run(scenario())


def test_what_is_known_of_it(engine: ProcessEngine) -> None:
    typed: Engine = engine
    assert typed.ready
    assert (typed.info.max_model_len, typed.info.vocab_size) == (200, 7)
    assert is_alive(typed.info.pid)
    assert typed.info.pid != os.getpid()
    assert engine.tokenizer is None


def test_timelines_come_from_the_other_process(engine: ProcessEngine) -> None:
    async def scenario() -> None:
        item = dataclasses.replace(request("a", n=2), tenant="t", timeout=50.0)
        deltas = await collect(engine, item)
        timeline = await engine.timeline("a")
        assert timeline is not None
        assert (timeline.request_id, timeline.tenant, timeline.timeout) == ("a", "t", 50.0)
        assert timeline.delivery.num_deltas == len(deltas)
        assert 0.0 < timeline.delivery.slowest <= timeline.delivery.total
        first = timeline.completions[0]
        assert (first.num_prompt_tokens, first.num_output_tokens, first.finish_reason) == (3, 4, "length")
        assert sum(chunk.num_tokens for chunk in first.chunks) == 3
        assert first.decode.num_steps == 3
        assert await engine.timeline("unknown") is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prompt", "params", "error", "match"),
    [
        ((), {}, InvalidParamsError, "request a: the prompt is empty"),
        ("text", {}, InvalidParamsError, "prompt_token_ids holds text"),
        ((1, 99), {}, InvalidParamsError, "token id 99, but the vocabulary has 7"),
        ((1, None), {}, InvalidParamsError, "cannot be handed to the engine"),
        ((2**70,), {}, InvalidParamsError, "cannot be handed to the engine"),
        ((1,) * 300, {}, ContextLengthError, "the prompt has 300 tokens"),
        (PROMPT, {"stop_token_ids": (50,)}, InvalidParamsError, "stop_token_ids"),
    ],
)
def test_refusals_keep_their_type(
    engine: ProcessEngine, prompt: object, params: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        asyncio.run(collect(engine, request("a", prompt, **params)))  # type: ignore[arg-type]
    assert tokens(asyncio.run(collect(engine, request("a")))) == sequential(PROMPT, 4)


def test_the_numbers_of_a_refusal_arrive(engine: ProcessEngine) -> None:
    with pytest.raises(ContextLengthError) as caught:
        asyncio.run(collect(engine, request("a", (1,) * 190, max_tokens=30)))
    assert (caught.value.num_prompt_tokens, caught.value.num_output_tokens, caught.value.max_model_len) == (
        190,
        30,
        200,
    )


def test_numpy_token_ids_are_token_ids(engine: ProcessEngine) -> None:
    item = dataclasses.replace(request("a"), prompt_token_ids=tuple(np.asarray(PROMPT)))
    assert tokens(asyncio.run(collect(engine, item))) == sequential(PROMPT, 4)
    as_list = dataclasses.replace(request("a"), prompt_token_ids=list(PROMPT))
    assert tokens(asyncio.run(collect(engine, as_list))) == sequential(PROMPT, 4)


def test_log_probabilities_arrive(engine: ProcessEngine) -> None:
    deltas = asyncio.run(collect(engine, request("a", logprobs=0, prompt_logprobs=0)))
    given = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.token_id for entry in given] == sequential(PROMPT, 4)
    assert [entry if entry is None else entry.token_id for entry in deltas[0].prompt_logprobs] == [None, 2, 3]


def test_a_running_id_is_refused_and_free_after_the_last_delta(engine: ProcessEngine) -> None:
    async def scenario() -> None:
        for _ in range(3):
            stream = engine.generate(request("a", max_tokens=190))
            await anext(stream)
            with pytest.raises(InvalidParamsError, match="is running"):
                await collect(engine, request("a"))
            await stream.aclose()
            deltas = []
            async for delta in engine.generate(request("a")):
                deltas.append(delta)
                if delta.finish_reason is not None:  # the generator is not asked again, and so does not end here
                    assert tokens(await collect(engine, request("a"))) == sequential(PROMPT, 4)
            assert tokens(deltas) == sequential(PROMPT, 4)

    asyncio.run(scenario())


def test_abort_ends_the_stream_of_whoever_has_the_request(engine: ProcessEngine) -> None:
    async def scenario() -> None:
        stream = engine.generate(request("a", max_tokens=190, n=2))
        await anext(stream)
        await engine.abort("a")
        await engine.abort("unknown")
        rest = [delta async for delta in stream]
        ends = sorted((d.index, d.finish_reason) for d in rest if d.finish_reason)
        assert [index for index, _ in ends] == [0, 1]
        assert "abort" in {reason for _, reason in ends}

    asyncio.run(scenario())


def test_three_hundred_requests_with_random_cancels_four_times_over_leave_no_block_behind(
    engine: ProcessEngine,
) -> None:
    rng = random.Random(5)

    async def one(name: str) -> None:
        item = request(name, tuple(rng.randrange(7) for _ in range(rng.randint(1, 40))), max_tokens=rng.randint(1, 30))
        leave_after = rng.choice([0, 1, 3, 1000, 1000])
        async with contextlib.aclosing(engine.generate(item)) as stream:
            if leave_after == 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(stream), rng.random() / 50)
                return
            count = 0
            async for _ in stream:
                count += 1
                if count >= leave_after:
                    return

    async def scenario() -> None:
        for turn in range(4):
            await asyncio.gather(*(one(f"{turn}-{i}") for i in range(300)))
            await collect(engine, request("last"))  # behind every abort
            stats = engine.stats()
            assert (stats.kv_blocks_used, stats.num_running, stats.num_waiting, stats.num_queued_tokens) == (0, 0, 0, 0)

    asyncio.run(scenario())


def test_event_loops_share_an_engine_and_one_that_is_gone_is_aborted(engine: ProcessEngine) -> None:
    loop = asyncio.new_event_loop()
    left = engine.generate(request("left", max_tokens=190))
    loop.run_until_complete(anext(left))
    loop.close()
    results: dict[str, list[int]] = {}

    def client(name: str) -> None:
        results[name] = tokens(asyncio.run(collect(engine, request(name, max_tokens=20))))

    threads = [threading.Thread(target=client, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys("abc", sequential(PROMPT, 20))
    asyncio.run(until(lambda: engine.stats().kv_blocks_used == 0))


def test_a_forked_process_is_told_that_the_engine_stayed_behind(engine: ProcessEngine) -> None:
    async def ask() -> str:
        with pytest.raises(EngineError) as caught:
            await collect(engine, request("a"))
        return caught.value.what

    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # forking with threads, from 3.12 on
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, asyncio.run(ask()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        assert b"which this one was forked from" in said.read()
    os.waitpid(child, 0)
    assert tokens(asyncio.run(collect(engine, request("a")))) == sequential(PROMPT, 4)


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        first = engine.generate(request("a", max_tokens=150))
        await anext(first)
        waiting = [asyncio.ensure_future(collect(engine, request(name, max_tokens=40))) for name in "bc"]
        await until(lambda: engine.stats().num_waiting == 2)
        with pytest.raises(QueueFullError) as caught:
            await collect(engine, request("d"))
        assert caught.value.num_waiting == 2
        assert caught.value.retry_after is not None
        assert 0.0 < caught.value.retry_after < 60.0
        await first.aclose()
        assert [tokens(await each) for each in waiting] == [sequential(PROMPT, 40)] * 2

    use(make(settings={"max_num_seqs": 1, "max_queued": 2}, sleep=0.02), scenario)


def test_leaving_frees_the_place_of_running_and_waiting_requests() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        first = engine.generate(request("a", max_tokens=150))
        await anext(first)
        waiting = [asyncio.ensure_future(collect(engine, request(name, max_tokens=150))) for name in "bc"]
        await until(lambda: engine.stats().num_waiting == 2)
        waiting[0].cancel()
        await until(lambda: engine.stats().num_waiting == 1)
        await first.aclose()
        await until(lambda: engine.stats().num_waiting == 0)  # c has got the place of a
        waiting[1].cancel()
        await until(lambda: engine.stats().num_running == 0 and engine.stats().kv_blocks_used == 0)

    use(make(settings={"max_num_seqs": 1}, sleep=0.02), scenario)


def test_time_at_the_door_counts() -> None:
    """A request that comes during a long step has waited from then on, not from the step's end."""

    async def scenario(engine: ProcessEngine) -> None:
        first = asyncio.ensure_future(collect(engine, request("a", max_tokens=2)))
        await asyncio.sleep(0.3)  # into the first step
        [last] = [d for d in await collect(engine, request("b", max_tokens=1)) if d.stats is not None]
        assert last.stats is not None
        assert last.stats.queue_time is not None
        assert last.stats.queue_time > 0.2
        await first

    use(make(sleep=1.0), scenario)


def test_two_engines_on_one_machine() -> None:
    engines = make(), make()

    async def main() -> None:
        calls = [collect(engine, request(str(i), seed=i)) for i in range(4) for engine in engines]
        for i, deltas in enumerate(await asyncio.gather(*calls)):
            assert tokens(deltas) == sequential(PROMPT, 4, seed=i // 2)
        await engines[0].close()
        assert tokens(await collect(engines[1], request("z"))) == sequential(PROMPT, 4)
        await engines[1].close()

    asyncio.run(main())
    assert not any(is_alive(engine.info.pid) for engine in engines)


def test_close_ends_open_streams_and_later_calls_say_so() -> None:
    async def scenario(engine: ProcessEngine) -> None:
        running = asyncio.ensure_future(collect(engine, request("a", max_tokens=150)))
        await until(lambda: engine.stats().num_running == 1)
        await asyncio.gather(engine.close(), engine.close())
        assert (await running)[-1].finish_reason == "abort"
        with pytest.raises(EngineError, match="request b: the engine is closed"):
            await collect(engine, request("b"))
        await engine.abort("a")
        assert await engine.timeline("a") is None
        assert engine.stats().num_running == 0

    use(make(sleep=0.02), scenario)


def test_requests_that_are_being_prepared_count_as_waiting(tmp_path: Path) -> None:
    gate, spec = tmp_path / "gate", GrammarSpec.regex("a")

    async def scenario(engine: ProcessEngine) -> None:
        first, left = (asyncio.create_task(collect(engine, request(name, grammar=spec))) for name in "ab")
        await asyncio.sleep(0)  # both are sent
        with pytest.raises(QueueFullError):
            await collect(engine, request("c", grammar=spec))
        with pytest.raises(QueueFullError):
            await collect(engine, request("d"))
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        assert tokens(await collect(engine, request("e"))) == sequential(PROMPT, 4)
        gate.touch()
        assert tokens(await first) == sequential(PROMPT, 4)
        for name in ("f", "g"):
            assert tokens(await collect(engine, request(name, grammar=spec))) == sequential(PROMPT, 4)

    use(make(gate=str(gate), settings={"max_queued": 2}), scenario)


def test_a_real_model_gives_what_it_gives_in_this_process(tiny_folder: Path, tmp_path: Path) -> None:
    settings = {"num_threads": 1, "num_blocks": 32}
    engine = ProcessEngine.load(str(tiny_folder), cache_dir=tmp_path, process=ProcessSettings(), **settings)

    async def scenario(engine: ProcessEngine) -> None:
        from slipstream.engine.llm import LLM

        assert engine.tokenizer is not None
        assert engine.info.warm_up_time > 0.0
        assert engine.stats().warm_up_time == engine.info.warm_up_time
        assert engine.stats().num_finished == 0  # the warm-up is nobody's request
        assert {decision.field for decision in engine.info.decisions} >= {"max_num_seqs", "num_blocks"}
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True, logprobs=1)
        ids = tuple(engine.tokenizer.encode("hello"))
        deltas = await collect(engine, GenerationRequest("a", ids, params))
        [output] = LLM(str(tiny_folder), cache_dir=tmp_path, **settings).generate([list(ids)], params)
        assert tokens(deltas) == output.outputs[0].token_ids
        assert "".join(delta.text for delta in deltas) == output.outputs[0].text
        assert [entry for delta in deltas for entry in delta.logprobs] == output.outputs[0].logprobs
        assert await engine.timeline("a") is not None

        words = SamplingParams(max_tokens=20, seed=1, grammar=GrammarSpec.choice(["yes", "no"]))
        answers = [collect(engine, GenerationRequest(f"g{i}", ids, words)) for i in range(3)]
        for given in await asyncio.gather(*answers):
            assert "".join(delta.text for delta in given) in ("yes", "no")
        broken = SamplingParams(max_tokens=20, grammar=GrammarSpec.regex("("))
        with pytest.raises(InvalidParamsError):
            await collect(engine, GenerationRequest("h", ids, broken))

    use(engine, scenario)
    with pytest.raises(ConfigError, match="max_seqs: is not a setting"):
        ProcessEngine.load("x", max_seqs=1)
