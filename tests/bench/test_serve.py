"""Whole load tests against a fake server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from slipstream.bench.failure import FailedRequestError
from slipstream.bench.record import Level, ServeResult, encode
from slipstream.bench.serve import ServeOptions, SweepInterrupted, WorkloadOptions, run_serve
from slipstream.bench.slo import parse_slo
from slipstream.errors import RequestError, UsageError
from tests.bench.fake_server import Behaviour, FakeServer

SMALL = WorkloadOptions(lengths="4:3,8:5,12:8", salt="s")


def bench(behaviour: Behaviour, *, count_tokens=None, **options) -> tuple[ServeResult, FakeServer]:
    async def run() -> tuple[ServeResult, FakeServer]:
        async with FakeServer(behaviour).running() as server:
            given = {"workload": SMALL, "seconds": 30.0, "warmup": 0.0, "max_requests": 12, **options}
            if not {"concurrency", "rates", "speedup"} & options.keys():
                given["concurrency"] = (1,)
            result = await run_serve(ServeOptions(url=server.url, **given), count_tokens=count_tokens)
            return result, server

    return asyncio.run(run())


def test_every_request_of_a_level_is_measured_and_counted() -> None:
    result, server = bench(Behaviour())
    [level] = result.levels
    summary = level.summary
    assert (result.model, result.notes) == ("echo", ())
    assert (level.kind, level.value) == ("concurrency", 1)
    assert (summary.requests, summary.succeeded, summary.errors) == (12, 12, {})
    assert [record.index for record in level.records] == list(range(12))
    assert sorted(record.output_tokens for record in level.records) == [3] * 4 + [5] * 4 + [8] * 4
    assert {record.group for record in level.records} == {"short", "medium", "long"}
    assert all(record.output_tokens == record.asked_tokens == record.server_tokens for record in level.records)
    assert all(len(record.gaps) == record.output_tokens - 1 for record in level.records)
    assert summary.tokens.counted_by == "usage per chunk"
    assert (summary.tokens.server, summary.tokens.client) == (64, 64)
    assert (summary.tokens.requests_that_differ, summary.tokens.tokens_per_chunk, summary.short_answers) == (0, 1.0, 0)
    assert set(summary.latency) == {"ttft", "tpot", "itl", "e2e"}
    assert summary.latency["itl"].count == 64 - 12
    assert sum(level.tokens_by_slice) <= 64
    assert server.most_open == 1
    assert server.connections == 1


def test_the_lengths_of_prompts_follow_the_servers_own_count() -> None:
    result, server = bench(Behaviour())
    assert result.workload["tokens per word"] == "1.000"
    assert result.workload["tokens around a prompt"] == "1.0"
    assert {record.prompt_tokens for record in result.levels[0].records} == {4, 8, 12}
    assert [len(body["prompt"].split()) for body in server.bodies[:2]] == [16, 80]


def test_as_many_requests_run_at_once_as_the_level_says() -> None:
    result, server = bench(Behaviour(delay=0.001), concurrency=(2, 5), max_requests=20)
    assert [level.value for level in result.levels] == [2, 5]
    assert server.most_open == 5
    prompts = [body["prompt"] for body in server.bodies]
    assert len(set(prompts)) == len(prompts)


def test_the_same_seed_asks_for_the_same_and_another_salt_for_other_words() -> None:
    def asked(**changes):
        _, server = bench(Behaviour(), workload=msgspec_replace(SMALL, **changes))
        return [(len(body["prompt"].split()), body["max_tokens"]) for body in server.bodies[2:14]], [
            body["prompt"] for body in server.bodies[2:14]
        ]

    assert asked() == asked()
    lengths, words = asked(salt="other")
    assert lengths == asked()[0]
    assert set(words).isdisjoint(asked()[1])
    assert asked(seed=5)[0] != lengths


def msgspec_replace(options: WorkloadOptions, **changes) -> WorkloadOptions:
    from dataclasses import replace

    return replace(options, **changes)


def test_warm_up_is_not_measured() -> None:
    result, server = bench(Behaviour(delay=0.002), warmup=0.15, max_requests=5)
    indices = [record.index for record in result.levels[0].records]
    assert len(indices) == 5
    assert indices[0] > 0
    assert len(server.bodies) >= 2 + indices[0] + 5


def test_several_tokens_in_a_chunk_are_several_tokens() -> None:
    result, _ = bench(Behaviour(tokens_per_chunk=4))
    summary = result.levels[0].summary
    assert (summary.tokens.server, summary.tokens.client) == (64, 64)
    assert summary.tokens.tokens_per_chunk == 64 / (4 * 1 + 4 * 2 + 4 * 2)
    five = next(record for record in result.levels[0].records if record.output_tokens == 5)
    assert five.chunk_tokens == (4, 1)
    assert five.tpot == five.gaps[0]


def test_without_running_usage_tokens_come_from_the_last_usage() -> None:
    result, _ = bench(Behaviour(tokens_per_chunk=4, running_usage=False))
    summary = result.levels[0].summary
    assert summary.tokens.counted_by == "usage at the end"
    assert (summary.tokens.server, summary.tokens.client) == (64, None)
    assert summary.tokens.tokens_per_chunk == 64 / 20
    assert "no running token counts" in result.notes[0]


def test_without_any_usage_chunks_are_counted_and_it_says_so() -> None:
    result, _ = bench(Behaviour(usage=False, running_usage=False))
    summary = result.levels[0].summary
    assert summary.tokens.counted_by == "chunks"
    assert (summary.tokens.server, summary.tokens.client) == (None, None)
    assert any("no usage" in note for note in result.notes)
    assert summary.prompt_tokens_per_s is None


def test_a_tokenizer_counts_what_was_streamed() -> None:
    result, _ = bench(Behaviour(miscount=1), count_tokens=lambda text: len(text.split()))
    tokens = result.levels[0].summary.tokens
    assert tokens.counted_by == "tokenizer"
    assert (tokens.server, tokens.client, tokens.requests_that_differ) == (64 + 12, 64, 12)


def test_a_server_without_the_extensions_is_spoken_to_without_them() -> None:
    result, server = bench(Behaviour(refuses=("continuous_usage_stats", "ignore_eos"), stop_after=4))
    assert "ignore_eos" not in server.bodies[-1]
    assert result.settings["ignore_eos"] == "no"
    assert len(result.notes) == 2
    assert result.levels[0].summary.short_answers == 8


def test_chat() -> None:
    result, server = bench(Behaviour(newline="\r\n"), api="chat")
    assert result.levels[0].summary.tokens.client == 64
    assert server.bodies[-1]["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(fail_every=4), "disconnect"),
        (Behaviour(malformed_every=4), "malformed"),
        (Behaviour(busy_every=4), "http 429"),
    ],
)
def test_failures_are_counted_apart(behaviour: Behaviour, kind: str) -> None:
    result, _ = bench(behaviour, slo=parse_slo("e2e_p50=60"))
    [level] = result.levels
    failed = [record for record in level.records if record.error is not None]
    assert level.summary.errors == {kind: 3}
    assert level.summary.succeeded == 9
    assert all(record.ttft is None and record.message for record in failed)
    assert level.summary.latency["ttft"].count == 9
    assert level.summary.goodput == pytest.approx(9 / level.summary.seconds)
    assert level.summary.meets_slo is True
    assert result.knee.knee is None
    assert "3 of 12 requests failed" in result.knee.why


def test_failures_make_a_tail_objective_fail() -> None:
    result, _ = bench(Behaviour(fail_every=4), slo=parse_slo("e2e_p99=60"))
    assert result.levels[0].summary.meets_slo is False


def test_a_slow_server_is_a_timeout() -> None:
    result, server = bench(Behaviour(delay=0.05), timeout=0.2, max_requests=3, workload=WorkloadOptions(lengths="4:40"))
    assert result.levels[0].summary.errors == {"timeout": 3}
    assert result.levels[0].summary.output_tokens_per_s is None
    assert "no request was answered" in result.notes[-1]
    assert len(server.bodies) >= 5


def test_connections_that_the_server_closes_are_replaced() -> None:
    result, server = bench(Behaviour(close_after_each=True))
    assert result.levels[0].summary.succeeded == 12
    assert server.connections >= 14


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    result, _ = bench(Behaviour(delay=0.001), rates=(200.0,), max_requests=30)
    [level] = result.levels
    assert level.kind == "rate"
    assert level.summary.succeeded == 30
    assert all(record.late >= 0 and record.ttft >= record.late for record in level.records)
    assert [record.started for record in level.records] == sorted(record.started for record in level.records)


def test_a_level_does_not_end_between_a_request_and_its_task(tmp_path, monkeypatch) -> None:
    """The end is looked for in every turn of the event loop, also in the one after the last arrival."""
    monkeypatch.setattr("slipstream.bench.loadgen.LAG_INTERVAL", 0.0)
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,2\n")
    result, _ = bench(
        Behaviour(), workload=WorkloadOptions(name=str(path)), speedup=1.0, seconds=5.0, max_requests=None
    )
    assert result.levels[0].summary.succeeded == 1


def test_a_trace_is_replayed_at_its_own_times(tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,2\n1,6,3\n2,7,4\n3,900,90\n")
    workload = WorkloadOptions(name=str(path), length_cap=20)
    result, server = bench(Behaviour(), workload=workload, speedup=20.0, seconds=5.0, max_requests=None)
    [level] = result.levels
    assert [record.output_tokens for record in level.records] == [2, 3, 4, 10]
    assert [record.prompt_tokens for record in level.records] == [5, 6, 7, 10]
    gaps = [b.started - a.started for a, b in zip(level.records, level.records[1:], strict=False)]
    assert gaps == pytest.approx([0.05] * 3, abs=2e-6)
    assert level.summary.seconds < 5.0
    assert len(server.bodies) == 2 + 4


def test_a_trace_of_one_request_is_one_request(tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,2\n")
    result, server = bench(Behaviour(), workload=WorkloadOptions(name=str(path)), speedup=1.0, max_requests=None)
    assert result.levels[0].summary.succeeded == 1
    assert len(server.bodies) == 2 + 1


def test_requests_of_a_group_share_their_prefix() -> None:
    workload = WorkloadOptions(name="shared-prefix", prefix_groups=2, prefix_tokens=40)
    _, server = bench(Behaviour(), workload=workload)
    prompts = [body["prompt"].split() for body in server.bodies[2:]]
    heads = {tuple(words[:39]) for words in prompts}
    assert len(heads) == 2
    assert len({tuple(words) for words in prompts}) == len(prompts)


def test_the_file_holds_everything_and_reads_back() -> None:
    result, _ = bench(Behaviour(tokens_per_chunk=2))
    assert msgspec.json.decode(encode(result), type=ServeResult) == result


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"model": "other"}, FailedRequestError, "404: the model other does not exist"),
        ({"url": "http://127.0.0.1:1"}, FailedRequestError, "cannot be reached"),
        ({"url": "ftp://here"}, UsageError, "not an http"),
        ({"url": "http://user:secret@here"}, UsageError, "more than"),
        ({"concurrency": ()}, UsageError, "give one of"),
        ({"rates": (1.0,)}, UsageError, "give one of"),
        ({"concurrency": (), "speedup": 2.0}, UsageError, "replays a trace"),
        ({"workload": WorkloadOptions(name="heavy")}, UsageError, "no workload 'heavy'"),
    ],
)
def test_what_cannot_be_run_is_refused(options, error, match) -> None:
    async def run() -> None:
        async with FakeServer().running() as server:
            given = {"url": server.url, "concurrency": (1,), "workload": SMALL, "seconds": 1.0, **options}
            await run_serve(ServeOptions(**given))

    with pytest.raises(error, match=match):
        asyncio.run(run())


def test_a_key_that_is_missing_or_wrong_is_said_at_once() -> None:
    with pytest.raises(FailedRequestError, match=r"401: no valid key.*--api-key-file"):
        bench(Behaviour(key="secret"))
    result, _ = bench(Behaviour(key="secret"), headers={"Authorization": "Bearer secret"})
    assert result.levels[0].summary.succeeded == 12


def test_several_models_need_a_name() -> None:
    with pytest.raises(RequestError, match=r"2 models \(a, b\)"):
        bench(Behaviour(models=("a", "b")))
    assert bench(Behaviour(models=("a", "b")), model="b")[0].model == "b"


def test_an_answer_that_is_no_stream_is_refused() -> None:
    with pytest.raises(FailedRequestError, match="answers with application/json, not with a stream"):
        bench(Behaviour(content_type="application/json"))


def test_a_server_that_is_gone_ends_the_level() -> None:
    async def run() -> ServeResult:
        async with FakeServer(Behaviour(close_after_each=True)).running() as server:
            options = ServeOptions(url=server.url, concurrency=(16, 32), workload=SMALL, seconds=60.0, warmup=0.0)
            task = asyncio.create_task(run_serve(options))
            while len(server.bodies) < 50:
                await asyncio.sleep(0.01)
            return task

    async def both() -> ServeResult:
        return await (await run())

    result = asyncio.run(both())
    assert result.levels[0].summary.errors["connect"] >= 90
    assert result.levels[0].summary.succeeded > 0
    assert result.levels[0].summary.seconds < 30


def test_a_sweep_that_is_cancelled_has_its_finished_levels() -> None:
    async def run(after: int) -> ServeResult:
        async with FakeServer(Behaviour()).running() as server:
            finished: list[float] = []

            def on_level(level: Level) -> None:
                finished.append(level.value)
                if len(finished) == after:
                    sweep.cancel()

            options = ServeOptions(
                url=server.url, workload=SMALL, seconds=30.0, warmup=0.0, max_requests=6, concurrency=(1, 2, 3)
            )
            sweep = asyncio.ensure_future(run_serve(options, on_level=on_level))
            if not after:
                asyncio.get_running_loop().call_later(0, sweep.cancel)
            return await sweep

    with pytest.raises(SweepInterrupted) as caught:
        asyncio.run(run(2))
    result = caught.value.result
    assert [level.value for level in result.levels] == [1, 2]
    assert result.notes == ("interrupted at concurrency 3; it and later levels are missing",)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run(0))
