"""`slipstream bench` from arguments to output and exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.bench.micro import Ceilings, OpTotal, StepResult
from slipstream.cli import bench_serve
from slipstream.cli.main import main
from tests.bench.fake_server import Behaviour, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer(Behaviour(key="secret"))
    started, stop = threading.Event(), None

    async def run() -> None:
        nonlocal stop
        stop = asyncio.Event(), asyncio.get_running_loop()
        async with fake.running():
            started.set()
            await stop[0].wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(10)
    yield fake
    assert stop is not None
    stop[1].call_soon_threadsafe(stop[0].set)
    thread.join()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background jobs begin with SIGINT ignored, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_sweep_writes_a_table_json_and_a_page_that_can_be_compared(run, server: FakeServer, tmp_path: Path) -> None:
    key, result, page = tmp_path / "key", tmp_path / "a.json", tmp_path / "a.html"
    key.write_text("secret\n")
    arguments = ("serve", "--url", server.url, "--api-key-file", key, "--concurrency", "1,2", "--seconds", 20,
                 "--warmup", 0, "--requests", 9, "--lengths", "4:3,5:4,6:5", "--slo", "e2e_p99=60")  # fmt: skip
    code, out, err = run(*arguments, "--output", result, "--html", page)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split()[:4] == ["at", "once", "output", "tok/s"]
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
    assert "knee:" in lines[3]
    assert "tokens by usage per chunk: server 36, client 36, 0 requests differ" in err
    assert "event loop late by" in err
    written = json.loads(result.read_text())
    assert len(written["levels"][0]["records"]) == 9
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "key"]
    code, out, err = run(*arguments, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["workload"]["kind"] == "mixed"
    code, out, _ = run("compare", result, result)
    assert code == 0
    assert out.count("within noise") == 10
    assert "one run each: differences below 10% are not told apart from drift" in out
    assert run("compare", result, result, "--drift", -1)[0] == 2
    code, out, _ = run("compare", result, result, "--json")
    for each in json.loads(out)["comparisons"]:
        assert each["ratio"] == (1.0 if each["a"] else None)


def test_ctrl_c_keeps_the_finished_levels(
    run, interruptible: None, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, result, page = tmp_path / "key", tmp_path / "a.json", tmp_path / "a.html"
    key.write_text("secret\n")
    monkeypatch.setattr(bench_serve, "_show_level", lambda level: signal.raise_signal(signal.SIGINT))
    code, out, err = run(
        *("serve", "--url", server.url, "--api-key-file", key, "--concurrency", "1,2,4", "--seconds", 20),
        *("--warmup", 0, "--requests", 9, "--lengths", "4:3", "--output", result, "--html", page),
    )
    assert code == 130
    assert [line.split()[0] for line in out.splitlines()[1:2]] == ["1"]
    assert "note: interrupted at concurrency 2; it and later levels are missing" in out
    assert err.endswith("interrupted\n")
    [level] = json.loads(result.read_text())["levels"]
    assert level["value"] == 1
    assert len(level["records"]) == 9
    assert "interrupted at concurrency 2" in page.read_text()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--url"),
        (("--url", "http://127.0.0.1:1"), 7, "cannot be reached: Connection refused"),
        (("--url", "nowhere"), 2, "not an http"),
        (("--url", "http://x", "--seconds", "0"), 2, "--seconds: must be above 0"),
        (("--url", "http://x", "--requests", "0"), 2, "--requests: must be at least 1"),
        (("--url", "http://x", "--slo", "fast"), 2, "'fast' is not an objective"),
        (("--url", "http://x", "--concurrency", "0"), 2, "--concurrency"),
        (("--url", "http://x", "--concurrency", "1", "--rate", "1"), 2, "give one of"),
        (("--url", "http://x", "--api", "embeddings"), 2, "no API 'embeddings'"),
        (("--url", "http://x", "--workload", "none.jsonl"), 2, "none.jsonl: cannot be read"),
        (("--url", "http://x", "--workload", "heavy"), 2, "no workload 'heavy'"),
        (("--url", "http://x", "--output", "/nowhere/a.json"), 2, "no such folder"),
        (("--url", "http://x", "--html", "/"), 2, "is a folder"),
        (("--url", "http://x", "--api-key-file", "none"), 2, "none: cannot be read"),
        (("--url", "http://x", "--speedup", "0"), 2, "--speedup"),
        (("--url", "http://x", "--warmup", "-1"), 2, "--warmup"),
        (("--url", "http://x", "--duration", "3"), 2, "no option --duration. See `slipstream bench serve --help`"),
        (("--url", "http://x", "--second", "3"), 2, "no option --second. Did you mean --seconds?"),
    ],
)
def test_what_cannot_be_run_is_said_with_an_exit_code(run, arguments, code: int, message: str) -> None:
    found, out, err = run("serve", *arguments)
    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.fast
@pytest.mark.parametrize("text", ["", "two words", "a\nb", "\u00e4"])
def test_a_file_without_a_key(run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    code, _, err = run("serve", "--url", "http://x", "--api-key-file", path)
    assert code == 2
    assert "holds" in err


@pytest.mark.fast
def test_help_and_near_names(run) -> None:
    code, out, _ = run()
    assert code == 0
    assert all(f"  {name} " in out for name in ("serve", "compare", "throughput", "latency", "micro"))
    assert run("--help")[1] == out
    assert "slipstream bench latency [OPTIONS]" in run("latency", "--help")[1]
    code, _, err = run("sreve")
    assert code == 2
    assert "Did you mean `slipstream bench serve`?" in err
    assert "slipstream bench compare --help" in run("compare", "--fast")[2]


def test_offline_benchmarks(run, tiny_folder: Path, tmp_path: Path) -> None:
    options = (tiny_folder, "--num-threads", 1, "--rounds", 3)
    code, out, err = run("throughput", *options, "--requests", 3, "--lengths", "8:4", "--output", tmp_path / "t.json")
    assert code == 0
    assert out.startswith("3 requests, 24 + 12 tokens\n  output tokens/s")
    assert "over 3 rounds" in out
    assert "  seconds " in out
    assert " ms" not in out
    assert "peak memory" in out
    assert "round 0:" in err
    assert "warm-up, dropped" in err
    code, out, err = run("latency", *options, "--shapes", "2x8:4", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["cases"][0]["name"] == "batch 2, 8 + 4 tokens"
    code, out, _ = run("compare", tmp_path / "t.json", tmp_path / "t.json")
    assert code == 0
    assert out.count("1.000 [1.000, 1.000]") == 3
    assert " ms" not in out
    assert run("latency", *options, "--shapes", "1x300:4")[0] == 4
    assert run("throughput", *options[:3], "--rounds", 0)[0] == 2


def test_single_steps(run, tiny_folder: Path, tmp_path: Path) -> None:
    options = (tiny_folder, "--num-threads", 1, "--seconds", 0.01, "--decode", "1x8,1x4000", "--prefill", 12)
    code, out, err = run("micro", *options, "--output", tmp_path / "m.json")
    assert code == 0
    assert "note: decode 1 at 4000 is left out: the model has 256 positions" in err
    assert "ceilings: read" in out
    assert out.count("  attention ") == 2
    assert [step["name"] for step in json.loads((tmp_path / "m.json").read_text())["steps"]] == [
        "decode 1 at 8",
        "prefill 12",
    ]
    code, out, err = run("micro", *options, "--backend", "reference", "--json")
    assert code == 0
    assert "no times of ops, GB/s or ceilings" in err
    assert json.loads(out)["steps"][0]["ops"] == []
    assert run("micro", *options, "--backend", "abacus")[0] == 2
    code, _, err = run("micro", tiny_folder, "--num-threads", 1, "--decode", "1x4000", "--prefill", "")
    assert code == 2
    assert "the model has 256 positions, too few for decode 1 at 4000" in err
    for wrong in (0, 1025):
        code, _, err = run("micro", tiny_folder, "--num-threads", wrong)
        assert (code, "--num-threads: must be from 1 to 1024" in err) == (2, True)
    code, out, err = run("micro", *options[:1], "--num-threads", 1024, *options[3:], "--json")
    assert code == 0
    assert f"note: {json.loads(out)['threads']} threads (asked: 1024)" in err
    assert run("micro", tmp_path / "none")[0] == 3


@pytest.mark.fast
@pytest.mark.parametrize(("read_share", "noted"), [(1.004, False), (1.2, True)])
def test_shares_above_the_ceiling_come_with_a_note(
    run, monkeypatch: pytest.MonkeyPatch, read_share: float, noted: bool
) -> None:
    op = OpTotal("linear", 1, 0.01, 1e6 * read_share, 1e6, read_share, 0.5)
    ceilings = Ceilings(1e8, 1e9, 1e9)
    result = StepResult("decode 1x16", 1, 16, 1, 3, 0.02, 0.011, 0.01, (op,), ceilings)
    monkeypatch.setattr("slipstream.cli.bench_micro._load", lambda *given: (None, SimpleNamespace(name="cpu"), 99))
    monkeypatch.setattr("slipstream.cli.bench_micro.measure_native", lambda *given: result)
    code, out, err = run("micro", "any", "--decode", "1x16", "--prefill", "", "--num-threads", "1")
    assert code == 0
    assert f"{round(100 * read_share)}%" in out
    assert ("note: shares above 100 %: ceilings" in err) is noted
