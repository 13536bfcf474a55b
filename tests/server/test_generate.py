"""Jobs, and the one bounded buffer between the engine and a client."""

import asyncio

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.errors import DeadlineError, EngineError, RequestError
from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import SlowClientError
from slipstream.server.generate import DeltaStream, Job, Prompt, collect
from slipstream.server.usage import Account

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


def job(*prompts, timeout=None, **params) -> Job:
    return Job("job", tuple(Prompt(tuple(each)) for each in prompts), SamplingParams(**params), timeout=timeout)


def test_one_prompt_keeps_the_id_and_several_number_it():
    assert [each.request_id for each in job([1]).requests()] == ["job"]
    assert [each.request_id for each in job([1], [2]).requests()] == ["job-0", "job-1"]
    assert job([1], [2], n=3).num_choices == 6


async def test_collect_sorts_completions():
    outputs = await collect(DeltaStream(EchoEngine(), job([1, 2], [3], n=2)), job([1, 2], [3], n=2))
    assert [[each.token_ids for each in output.outputs] for output in outputs] == [[[1, 2], [1, 2]], [[3], [3]]]


async def test_batches_hold_what_has_come():
    stream = DeltaStream(EchoEngine(), job([1, 2, 3]))
    stream.start()
    first = await stream.batch()
    await asyncio.sleep(0.01)
    rest = await stream.batch()
    assert [delta.token_ids for delta in [*first, *rest]] == [(1,), (2,), (3,)]
    assert await stream.batch() is None
    assert await stream.batch() is None
    await stream.close()
    await stream.close()


async def test_a_reader_that_falls_behind_loses_its_requests():
    engine = EchoEngine()
    stream = DeltaStream(engine, job(range(100), range(100)), buffer=5)
    stream.start()
    await asyncio.sleep(0.02)
    assert engine.stats().num_running == 0
    assert engine.stats().num_output_tokens < 20
    with pytest.raises(SlowClientError):
        await stream.batch()
    await stream.close()


async def test_an_empty_batch_is_a_ping():
    engine = EchoEngine(delay=0.2)
    stream = DeltaStream(engine, job([1]), ping=0.02)
    stream.start()
    assert await stream.batch() == []
    found = []
    while (batch := await stream.batch()) is not None:
        found += batch
    assert [delta.token_ids for delta in found] == [(1,)]
    await stream.close()


async def test_closing_aborts():
    engine = EchoEngine(delay=10)
    closed = []
    stream = DeltaStream(engine, job([1], [2]), on_close=closed.append)
    stream.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.stats().num_running == 2
    await stream.close()
    assert engine.stats().num_running == 0
    assert closed == [stream]


async def test_one_prompt_that_fails_ends_the_others():
    engine = EchoEngine(delay=0.001)
    with pytest.raises(RequestError, match="empty"):
        await collect(DeltaStream(engine, job(range(50), [])), job(range(50), []))
    assert engine.stats().num_running == 0


async def test_what_was_made_before_a_failure_is_handed_over_first():
    stream = DeltaStream(EchoEngine(fail_after=2), job([1, 2, 3]))
    stream.start()
    found = []

    async def read_all() -> None:
        while (batch := await stream.batch()) is not None:
            found.extend(batch)

    with pytest.raises(EngineError, match="on purpose"):
        await read_all()
    assert [delta.token_ids for delta in found] == [(1,), (2,)]
    await stream.close()


async def test_fail_reaches_a_waiting_reader():
    stream = DeltaStream(EchoEngine(delay=10), job([1]))
    stream.start()
    waiting = asyncio.create_task(stream.batch())
    await asyncio.sleep(0)
    stream.fail(EngineError("stop"))
    with pytest.raises(EngineError, match="stop"):
        await waiting
    await stream.close()


class Scripted(EchoEngine):
    def __init__(self, *deltas):
        super().__init__()
        self._script = deltas

    async def generate(self, request):
        for delta in self._script:
            yield delta


async def test_a_failed_completion_fails_the_answer():
    engine = Scripted(OutputDelta("job", 0, "", (), finish_reason="error", error="NaN"))
    with pytest.raises(EngineError, match="NaN"):
        await collect(DeltaStream(engine, job([1])), job([1]))


async def test_a_deadline_without_a_token_is_an_error_and_with_one_a_reason():
    late = Scripted(OutputDelta("job", 0, "", (), finish_reason="deadline"))
    with pytest.raises(DeadlineError):
        await collect(DeltaStream(late, job([1])), job([1]))
    cut = Scripted(OutputDelta("job", 0, "a", (5,)), OutputDelta("job", 0, "", (), finish_reason="deadline"))
    [output] = await collect(DeltaStream(cut, job([1])), job([1]))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("a", "deadline")


def stats(**values) -> CompletionStats:
    known = {"num_prompt_tokens": 4, "num_output_tokens": 2, "num_cached_tokens": 0, "num_preemptions": 0}
    times = {"queue_time": 0.1, "ttft": 0.3, "tpot": 0.05, "e2e": 0.4}
    return CompletionStats(**{**known, **times, **values})


def test_accounts_count_prompts_once():
    account = Account(8, 2)
    account.add(OutputDelta("a", 0, "x", (1, 2), finish_reason="stop", stats=stats(num_cached_tokens=3)))
    account.add(OutputDelta("a", 1, "x", (1,), finish_reason="stop", stats=stats(num_cached_tokens=4)))
    account.add(OutputDelta("a", 2, "x", (1,), finish_reason="stop", stats=stats(num_cached_tokens=2)))
    assert account.usage() == {
        "prompt_tokens": 8,
        "completion_tokens": 4,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 5},
    }


def test_timings_span_all_completions():
    account = Account(4, 2)
    drafts = {"num_drafts": 2, "num_draft_tokens": 6}
    saving = {"num_accepted_tokens": 3, "time_saved": 0.125}
    account.add(OutputDelta("a", 0, "x", (1,), stats=stats(num_preemptions=1, **drafts, **saving)))
    account.add(OutputDelta("a", 1, "x", (1,), stats=stats(queue_time=0.2, ttft=0.5, tpot=0.15, e2e=0.9, **drafts)))
    assert account.timings() == {
        "queue_ms": 100.0,
        "prefill_ms": 200.0,
        "ttft_ms": 300.0,
        "decode_ms": 600.0,
        "tpot_ms": 100.0,
        "e2e_ms": 900.0,
        "cached_tokens": 0,
        "preemptions": 1,
        "draft_tokens": 12,
        "accepted_tokens": 3,
        "mean_accepted_length": 1.75,
        "time_saved_ms": 125.0,
    }
    assert set(Account(1, 1).timings().values()) == {None, 0}
