"""benchmarks/serving.py and what belongs to it; its measurements are not run here."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest
from benchmarks import servers, serving, serving_overhead
from benchmarks.servers import Server, ServerSpec, Setup
from benchmarks.serving import Turn
from benchmarks.serving_overhead import Answer, Block, Prompt
from benchmarks.serving_plot import plot

from slipstream.bench.record import Level
from slipstream.bench.serve import ServeOptions, WorkloadOptions, run_serve
from tests.bench.fake_server import Behaviour, FakeServer


def make_setup(folder: Path, **more) -> Setup:
    return Setup(model=Path("/m/x.gguf"), threads=2, concurrency=16, max_tokens=2368, out=folder, **more)


# ---- servers ----


def test_every_server_gets_the_same_threads_requests_and_context(tmp_path: Path) -> None:
    setup = make_setup(tmp_path, llama_server=Path("/b/llama-server"))
    own = " ".join(servers.slipstream_command(setup, 81))
    assert "serve /m/x.gguf --port 81 --num-threads 2 --max-num-seqs 16 --max-model-len 2368" in own
    assert own.endswith("--no-enable-prefix-caching")
    llama = " ".join(servers.llama_command(setup, 82))
    assert llama.startswith("/b/llama-server -m /m/x.gguf --port 82 -t 2 -tb 2 -np 16 -c 37888 --cont-batching")
    assert "--no-cache-prompt --cache-ram 0 --slot-prompt-similarity 0" in llama


def test_vllm_serves_a_folder_made_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(servers.subprocess, "run", lambda command, **more: ran.append(command))
    command = servers.vllm_command(make_setup(tmp_path, vllm_dtype="bfloat16", vllm_preload="/a.so:/b.so"), 83)
    [made] = ran
    assert made[1:] == [str(servers.WORKERS / "gguf_folder.py"), "/m/x.gguf", str(tmp_path / "vllm-model")]
    assert Path(made[1]).is_file()
    bound = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    assert command[:5] == [
        "env",
        "VLLM_TARGET_DEVICE=cpu",
        "VLLM_CPU_KVCACHE_SPACE=4",
        f"VLLM_CPU_OMP_THREADS_BIND={bound}",
        "LD_PRELOAD=/a.so:/b.so",
    ]
    shown = " ".join(command)
    assert f"--model {tmp_path / 'vllm-model'} --host 127.0.0.1 --port 83 --load-format dummy --dtype bfloat16" in shown
    assert "--max-model-len 2368 --max-num-seqs 16 --no-enable-prefix-caching" in shown


def test_absent_servers_are_named_and_unknown_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "VLLM_PYTHON", tmp_path / "python")
    setup = make_setup(tmp_path, llama_server=tmp_path / "llama-server")
    chosen, absent = servers.choose(["llama-server", "slipstream", "vllm"], setup)
    assert [spec.name for spec in chosen] == ["slipstream"]
    assert "make peers-server" in absent["llama-server"]
    assert ".venv-vllm" in absent["vllm"]
    (tmp_path / "llama-server").touch()
    assert [spec.name for spec in servers.choose(["llama-server"], setup)[0]] == ["llama-server"]
    with pytest.raises(SystemExit, match="no server tgi"):
        servers.choose(["tgi"], setup)
    with pytest.raises(SystemExit, match="no server gpt"):
        servers.choose([], make_setup(tmp_path, extra={"gpt": ["-x"]}))


def test_processor_time_is_that_of_a_process_and_all_below_it(tmp_path: Path) -> None:
    for pid, parent, user, system in ((7, 1, 10, 5), (8, 7, 100, 0), (9, 8, 0, 1000), (10, 1, 5000, 5000)):
        (tmp_path / str(pid)).mkdir()
        line = f"{pid} (a (b) c) S {parent} 0 0 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0\n"
        (tmp_path / str(pid) / "stat").write_text(line)
    (tmp_path / "11").mkdir()  # has ended: no stat
    (tmp_path / "meminfo").touch()
    assert servers.cpu_seconds(7, tmp_path) == 1115 / servers.TICKS
    assert servers.cpu_seconds(10, tmp_path) == 10000 / servers.TICKS
    assert servers.cpu_seconds(11, tmp_path) == 0


SERVES = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"version": "4.5"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def members(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def test_a_server_is_waited_for_and_ends_with_everything_below_it(tmp_path: Path) -> None:
    spec = ServerSpec("slipstream", lambda setup, port: [sys.executable, "-c", SERVES, str(port)], "/ready")
    with servers.started([spec], make_setup(tmp_path, extra={"slipstream": ["--more", "1"]})) as [server]:
        assert server.command[-2:] == ["--more", "1"]
        assert server.get("/")[0] == 200
        assert server.version() == "4.5"
        assert server.cpu_seconds() > 0
        session = server._process.pid
        assert len(members(session)) == 2
    deadline = time.monotonic() + 10
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert members(session) == []
    assert server.get("/") == (0, b"")


def test_the_version_of_vllm_says_what_it_computes_with(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVES]
    spec = ServerSpec("vllm", lambda setup, port: [*command, str(port), "--dtype", "float32"], "/health")
    with servers.started([spec], make_setup(tmp_path)) as [server]:
        assert server.version() == "4.5 (float32, random weights)"


def test_llama_server_tells_its_version_on_either_stream(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    spec = ServerSpec("llama-server", lambda setup, port: [str(program)], "/health")
    for script, version in (("echo 'warning' >&2; echo 'version: 0.5 (build 0)' >&2", "0.5 (build 0)"), ("true", None)):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        server = Server(spec, make_setup(tmp_path))
        if version is not None:
            assert server.version() == version
        else:
            with pytest.raises(SystemExit, match="does not tell its version"):
                server.version()
        server.close()


def test_a_server_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    spec = ServerSpec("vllm", lambda setup, port: [sys.executable, "-c", "raise SystemExit(3)"], "/health")
    server = Server(spec, make_setup(tmp_path))
    with pytest.raises(SystemExit, match=r"vllm ended with 3; see .*vllm\.log"):
        server.wait()
    server.close()


def test_command_lines_are_shown_without_this_machines_folders() -> None:
    command = [f"{servers.ROOT}/.venv/bin/slipstream", "serve", f"{Path.home()}/m/x.gguf", "--port", "1"]
    assert servers.relative(command) == ".venv/bin/slipstream serve ~/m/x.gguf --port 1"


# ---- turns ----


def level(behaviour: Behaviour) -> Level:
    async def run() -> Level:
        async with FakeServer(behaviour).running() as server:
            options = ServeOptions(
                url=server.url,
                workload=WorkloadOptions(lengths="4:3,8:5,12:8", salt="s"),
                concurrency=(2,),
                seconds=30.0,
                warmup=0.0,
                max_requests=12,
            )
            return (await run_serve(options)).levels[0]

    return asyncio.run(run())


def test_a_turn_holds_what_the_client_saw() -> None:
    found = level(Behaviour())
    turn = serving.read_turn(2, "vllm", found, 1.5, {"slipstream": 0.01})
    assert (turn.round, turn.server, turn.requests, turn.failed, turn.miscounted) == (2, "vllm", 12, 0, 0)
    assert turn.clean
    assert turn.tokens_per_chunk == 1.0
    assert (turn.server_processors, turn.idle_processors) == (1.5, {"slipstream": 0.01})
    assert turn.ttft_p99 == max(each.ttft for each in found.records)
    assert turn.tpot_p99 == max(turn.tpots)
    assert len(turn.tpots) == 12
    assert turn.e2e_p50 in [each.e2e for each in found.records]


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(miscount=1),
        Behaviour(miscount=1, running_usage=False),
        Behaviour(stop_after=2, refuses=("ignore_eos",)),
    ],
)
def test_answers_of_another_length_than_asked_are_counted(behaviour: Behaviour) -> None:
    turn = serving.read_turn(0, "vllm", level(behaviour))
    assert turn.miscounted == 12
    assert not turn.clean


def test_failed_requests_make_a_turn_unclean() -> None:
    turn = serving.read_turn(0, "vllm", level(Behaviour(fail_every=4)))
    assert turn.failed > 0
    assert not turn.clean


def test_a_turn_without_an_answer_ends_the_run() -> None:
    found = level(Behaviour())
    bare = msgspec.structs.replace(found.summary, latency={}, output_tokens_per_s=None)
    empty = msgspec.structs.replace(found, summary=bare)
    with pytest.raises(SystemExit, match=r"vllm answered nothing .* of round 1 .*more --seconds"):
        serving.read_turn(1, "vllm", empty)


def test_a_round_asks_every_server_for_the_same() -> None:
    args = serving.options().parse_args(["x.gguf", "--concurrency", "4", "--seconds", "5"])
    one, same = (serving.turn_options(url, 1, args) for url in ("http://a", "http://b"))
    assert replace(one, url=same.url) == same
    assert (one.concurrency, one.seconds, one.warmup) == ((4,), 5.0, 60.0)
    assert serving.turn_options("http://a", 2, args).workload != one.workload
    assert one.ignore_eos


def test_the_context_holds_the_longest_request() -> None:
    assert serving.longest("16-64:16,1024-2048:128-256") == 2048 + 256 + serving.MARGIN


def turn(number: int, server: str, rate: float, p99: float, **more) -> Turn:
    values = {
        "output_tokens_per_s": rate,
        "ttft_p50": 1.0,
        "ttft_p99": 2.0,
        "tpot_p50": p99 / 2,
        "tpot_p99": p99,
        "e2e_p50": 20.0,
        "requests": 30,
        "failed": 0,
        "miscounted": 0,
        "tokens_per_chunk": 1.0,
        "server_processors": 1.9,
        "client_processors": 0.05,
        "idle_processors": {},
        "tpots": (p99 / 2, p99),
        **more,
    }
    return Turn(number, server, **values)


def test_ratios_are_taken_within_rounds() -> None:
    turns = [
        *(turn(0, "slipstream", 400.0, 0.1), turn(0, "llama-server", 100.0, 0.2)),
        *(turn(1, "llama-server", 50.0, 0.4), turn(1, "slipstream", 150.0, 0.3)),
        *(turn(2, "slipstream", 360.0, 0.2), turn(2, "llama-server", 100.0, 0.1)),
    ]
    found = serving.summarise(turns)
    own = found["ratios"]["llama-server"]
    assert own["output_tokens_per_s"]["by_round"] == pytest.approx([4.0, 3.0, 3.6])
    assert own["output_tokens_per_s"]["median"] == pytest.approx(3.6)
    assert own["tpot_p99"]["by_round"] == pytest.approx([0.5, 0.75, 2.0])
    assert own["tpot_p99_all_rounds"] == pytest.approx(0.75)
    assert found["medians"]["slipstream"]["output_tokens_per_s"] == 360.0
    targets = found["targets"]["llama-server"]
    assert targets["output_tokens_per_s"] == {"at_least": 3.5, "is": pytest.approx(3.6), "met": True}
    assert targets["tpot_p99"] == {"at_most": 1.0, "is": pytest.approx(0.75), "met": True}
    said = "\n".join(serving.verdicts(found))
    assert "output tokens/s over llama-server: 3.60 (by round 4.00 / 3.00 / 3.60); aim 3.5: met" in said
    assert "P99 TPOT over llama-server: 0.75 (by round 0.50 / 0.75 / 2.00), all rounds together 0.75" in said


@pytest.mark.parametrize("trouble", [{"failed": 1}, {"miscounted": 1}])
def test_no_target_is_met_with_failed_or_miscounted_answers(trouble: dict[str, int]) -> None:
    turns = [turn(0, "slipstream", 500.0, 0.1, **trouble), turn(0, "vllm", 100.0, 0.2)]
    targets = serving.summarise(turns)["targets"]["vllm"]
    assert not targets["output_tokens_per_s"]["met"]
    assert not targets["tpot_p99"]["met"]
    [said] = serving.notes_on(turns, 60.0, 60.0)
    assert said.startswith("round 0, slipstream: ")


def test_the_tail_of_all_rounds_counts_too() -> None:
    turns = [
        *(turn(0, "slipstream", 500.0, 0.1), turn(0, "vllm", 100.0, 0.2)),
        *(turn(1, "slipstream", 500.0, 0.1), turn(1, "vllm", 100.0, 0.2)),
        *(turn(2, "slipstream", 500.0, 0.9), turn(2, "vllm", 100.0, 0.2)),
    ]
    found = serving.summarise(turns)["targets"]["vllm"]["tpot_p99"]
    assert (found["is"], found["met"]) == (pytest.approx(4.5), False)


def test_without_slipstream_there_are_no_ratios() -> None:
    found = serving.summarise([turn(0, "vllm", 1.0, 1.0), turn(0, "llama-server", 1.0, 1.0)])
    assert (found["ratios"], found["targets"]) == ({}, {})


def test_requests_that_outlast_warm_up_or_window_are_noted() -> None:
    slow = [turn(0, "vllm", 1.0, 1.0, e2e_p50=70.0)]
    assert serving.notes_on(slow, 80.0, 80.0) == []
    said = ["round 0, vllm: half of the requests take over 70 s; raise --warmup and --seconds"]
    assert serving.notes_on(slow, 60.0, 80.0) == serving.notes_on(slow, 80.0, 60.0) == said


def test_notes_name_busy_idlers_and_a_busy_client() -> None:
    busy = turn(1, "slipstream", 1.0, 1.0, idle_processors={"vllm": 0.5, "llama-server": 0.001}, client_processors=0.4)
    assert serving.notes_on([busy], 60.0, 60.0) == [
        "round 1, slipstream: idle vllm took 50.0% of a processor",
        "round 1, slipstream: the client took 40% of a processor",
    ]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    turns = [turn(0, "slipstream", 400.0, 0.1), turn(0, "vllm", 100.0, 0.2)]
    facts = {"model": "m", "concurrency": 16, "threads": 2, "rounds": 1, "seconds": 60.0}
    rows = [asdict(each) for each in turns]
    result = {**facts, "versions": {"slipstream": "1", "vllm": "2"}, "turns": rows, **serving.summarise(turns)}
    plot(result, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


# ---- overhead ----


class FakeSide:
    """Its moments are given, not taken."""

    def __init__(self, first: float, step: float, miscount: int = 0, longer: int = 0) -> None:
        self.first, self.step, self.miscount, self.longer = first, step, miscount, longer
        self.asked: list[tuple[str, Prompt]] = []

    async def answer(self, name: str, prompt: Prompt, tokens: int) -> Answer:
        self.asked.append((name, prompt))
        last = self.first + (tokens - 1) * self.step
        return Answer(0.0, self.first, last, tokens + self.miscount, "same", len(prompt.ids) + self.longer)


def prompt_of(name: str, tokens: int) -> Prompt:
    return Prompt(name, tuple(range(tokens)))


def test_a_block_is_timed_from_the_first_request_to_the_last_token() -> None:
    side = FakeSide(1.0, 0.5)
    found = asyncio.run(serving_overhead.block(side, "b", [prompt_of("x", 4), prompt_of("y", 4)], 9))
    assert replace(found, reader=0.0) == Block(18 / 5.0, 0.5, ("same", "same"))
    assert 0.0 < found.reader < 0.1
    assert [name for name, _ in side.asked] == ["b-0", "b-1"]


@pytest.mark.parametrize("wrong", [{"miscount": -1}, {"longer": 1}])
def test_other_lengths_than_asked_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="tokens instead of 4 and"):
        asyncio.run(serving_overhead.block(FakeSide(1.0, 0.5, **wrong), "b", [prompt_of("x", 4)], 9))
    with pytest.raises(RuntimeError, match="tokens instead of 4 and"):
        asyncio.run(serving_overhead.first_token(FakeSide(1.0, 0.5, **wrong), "b", prompt_of("x", 4)))


def test_both_sides_get_the_same_requests_and_the_first_round_is_dropped() -> None:
    http, inside = FakeSide(1.001, 0.01), FakeSide(1.0, 0.01)
    found = asyncio.run(serving_overhead.measure(http, inside, prompt_of, 3, 2))
    assert sorted(prompt.text for _, prompt in http.asked) == sorted(prompt.text for _, prompt in inside.asked)
    assert len(http.asked) == 3 * (3 + serving_overhead.PAIRS)
    assert found["ttft"]["pairs"] == 2 * serving_overhead.PAIRS
    assert len(found["throughput"]["by_round"]) == 2
    assert found["ttft"]["overhead"] == pytest.approx(1e-3)
    assert found["ttft"]["met"]
    assert found["throughput"]["overhead"] == pytest.approx(1 - 2.27 / 2.271)
    assert found["throughput"]["met"]


def test_overheads_and_their_verdicts() -> None:
    inside = Block(100.0, 0.010, ("a", "b"))
    blocks = [(Block(92.0, 0.011, ("a", "x")), inside), (Block(96.0, 0.010, ("a", "b")), inside)]
    found = serving_overhead.summarise(blocks, [(0.012, 0.010), (0.013, 0.010), (0.011, 0.010)])
    rate, ttft = found["throughput"], found["ttft"]
    assert rate["overhead"] == pytest.approx(0.06)
    assert rate["interval"] == pytest.approx([0.06 - 12.7062 * 0.02, 0.06 + 12.7062 * 0.02])
    assert (rate["tpot_overhead"], rate["different_answers"], rate["met"]) == (pytest.approx(0.05), 1, False)
    assert (ttft["overhead"], ttft["met"]) == (pytest.approx(2e-3), False)
    assert ttft["interval"] == pytest.approx([1e-3, 3e-3])
    said = serving_overhead.verdicts({"concurrency": 2, **found})
    assert "overhead 6.0%" in said[0]
    assert said[0].endswith("aim 5% at most: MISSED")
    assert "1 answers differ" in said[1]


def test_what_the_client_takes_of_the_processors_is_not_the_servers() -> None:
    inside = Block(100.0, 0.010, (), reader=0.01)
    found = serving_overhead.summarise([(Block(94.0, 0.010, (), reader=0.03), inside)] * 2, [(0.011, 0.010)])
    rate = found["throughput"]
    assert (rate["client"], rate["without_client"]) == (pytest.approx(0.02), pytest.approx(0.04))
    assert rate["met"]
    said = serving_overhead.verdicts({"concurrency": 2, **found})[0]
    assert "2.0% of it the client's, 4.0% without it; aim 5% at most: met" in said


def test_ttft_is_judged_by_pairs() -> None:
    blocks = [(Block(94.0, 0.010, ()), Block(100.0, 0.010, ()))] * 2
    said = serving_overhead.verdicts(
        {
            "concurrency": 2,
            **serving_overhead.summarise(blocks, [(0.012, 0.010), (0.013, 0.010), (0.011, 0.010)]),
        }
    )
    assert "overhead 2.00 ms [1.00, 3.00] over 3 pairs; aim 1.5 at most: MISSED" in said[2]
