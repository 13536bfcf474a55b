"""`slipstream serve` as a process: start, requests, a killed engine, SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.cli.exit_codes import ExitCode
from slipstream.cli.main import main
from slipstream.cli.serve import MAX_QUEUED, MAX_QUEUED_TOKENS, _bounded, _greeting, _say
from slipstream.config.types import EngineOptions, SchedulerOptions
from slipstream.engine.protocol import EngineInfo
from slipstream.server.options import ServerOptions

PATIENCE = 60.0  # seconds
RUN = """
import sys
from slipstream.cli.main import main
code = main(sys.argv[1:])
heavy = [name for name in ("torch", "transformers", "gguf") if name in sys.modules]
sys.exit(f"imported {heavy}" if heavy else code)
"""


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"(http://\S+) \(", line):
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def wait_until_listening(self) -> None:
        assert self._listening.wait(PATIENCE)
        assert self.url, "\n".join(self.lines)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE).json()

    def post(self, **body: object) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE)


@contextmanager
def serving(model: Path, tmp_path: Path, *args: str) -> Iterator[Server]:
    command = [sys.executable, "-c", RUN, "serve", str(model), "--port", "0", "--num-threads", "1", *args]
    environment = {**os.environ, "SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        server = Server(process)
        try:
            server.wait_until_listening()
            yield server
        finally:
            process.kill()


@pytest.mark.parametrize("where", [(), ("--in-process",)])
def test_start_answer_and_end(tiny_folder: Path, tmp_path: Path, where: tuple[str, ...]):
    with serving(tiny_folder, tmp_path, "--served-model-name", "tiny", "--log-format", "json", *where) as server:
        answer = server.post(prompt="The sky", max_tokens=4, ignore_eos=True)
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert answer.json()["model"] == "tiny"
        assert server.end() == 0
    logged = [json.loads(each) for each in server.lines]  # the greeting, too
    greeting = "\n".join(each["message"] for each in logged[:2])
    assert "tiny: llama" in greeting.lower()
    assert f"{server.url}/docs" in greeting
    [line] = [each for each in logged if each.get("path") == "/v1/completions"]
    assert line["status"] == 200
    assert line["request_id"] == answer.headers["x-request-id"]


def test_sigterm_loses_nothing_that_had_begun(tiny_folder: Path, tmp_path: Path):
    with serving(tiny_folder, tmp_path) as server:
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert first.startswith("data: ")
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(PATIENCE) == 0


def test_a_killed_engine_is_started_again(tiny_folder: Path, tmp_path: Path):
    with serving(tiny_folder, tmp_path) as server:
        [child] = _children(server.process.pid)
        os.kill(child, signal.SIGSTOP)  # so that the request is open when it dies
        with ThreadPoolExecutor() as pool:
            open_request = pool.submit(server.post, prompt="x", max_tokens=9)
            _until(lambda: [each["outcome"] for each in server.get("/requests")["requests"]] == ["running"])
            os.kill(child, signal.SIGKILL)
            failed = open_request.result(PATIENCE)
        assert failed.status_code == 500
        assert failed.json()["error"]["code"] == "engine_error"
        _until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        assert httpx.get(f"{server.url}/health").status_code == 200
        _until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
        assert server.post(prompt="x", max_tokens=2).status_code == 200
        assert server.end(signal.SIGINT) == 0


def test_a_port_that_is_taken_is_known_at_once(tiny_folder: Path, tmp_path: Path, capsys):
    with serving(tiny_folder, tmp_path, "--in-process") as server:
        port = server.url.rpartition(":")[2]
        assert main(["serve", "not even looked for", "--port", port]) == ExitCode.ADDRESS == 8
        assert f"127.0.0.1:{port}: cannot listen" in capsys.readouterr().err
        server.end()


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["no-such-model", "--port", "0"], 3, "no-such-model"),
        (["m", "--port", "99999"], 2, "port"),
        (["m", "--api-keys", "/none"], 2, "/none"),
        (["m", "--key-concurrency", "3"], 2, "need API keys"),
        (["m", "--tls-key", "k"], 2, "tls_certificate"),
        (["m", "--log-format", "xml"], 2, "text or json"),
        (["m", "--max-queued", "0"], 2, "max_queued"),
        (["m", "--drain-timeout", "-1"], 2, "drain_timeout"),
        ([], 2, "MODEL"),
    ],
)
def test_mistakes(args: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *args]) == code
    assert part in capsys.readouterr().err


@pytest.mark.fast
def test_a_quiet_start_still_warns(capsys: pytest.CaptureFixture[str]):
    info = EngineInfo("m", 2048, 100, family="Llama", warnings=("memory is short",))
    lines = _greeting(("m",), info, ServerOptions(), "http://here")
    for quiet, said in ((True, ["warning: memory"]), (False, ["warning: memory", "m: Llama", "http://here (no API"])):
        _say(lines, "text", quiet=quiet)
        shown = capsys.readouterr().err.splitlines()
        assert [line[: len(part)] for line, part in zip(shown, said, strict=True)] == said


@pytest.mark.fast
def test_a_servers_queue_is_bounded_unless_it_is_set():
    options = EngineOptions.from_flat(model="m", max_num_seqs=3)
    bounded = _bounded(options).scheduler
    assert (bounded.max_queued, bounded.max_queued_tokens) == (MAX_QUEUED, MAX_QUEUED_TOKENS)
    own = replace(options, scheduler=SchedulerOptions(max_queued=7, max_queued_tokens=9))
    assert _bounded(own) == own


def test_two_servers_on_one_machine(tiny_folder: Path, tmp_path: Path):
    with serving(tiny_folder, tmp_path) as one, serving(tiny_folder, tmp_path) as other:
        assert one.url != other.url
        body = {"prompt": "The sky", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        assert one.post(**body).json()["choices"] == other.post(**body).json()["choices"]
        assert one.end() == 0
        assert other.post(**body).status_code == 200
        assert other.end() == 0


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(each) for children in lists for each in children]


def _until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.fast
@pytest.mark.parametrize(
    "name",
    ["header_timeout", "body_timeout", "write_timeout", "keep_alive_timeout", "ping_interval", "stream_buffer"],
)
def test_what_has_to_be_above_zero(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing", f"--{name.replace('_', '-')}", "0"]) == 2
    assert f"{name}: must be above 0" in capsys.readouterr().err


def test_a_missing_file_of_keys_is_said_before_the_model_is_loaded(tmp_path: Path, capsys):
    assert main(["serve", str(tmp_path / "any"), "--api-keys", str(tmp_path / "keys")]) == ExitCode.USAGE
    assert "keys: the file of API keys cannot be read: No such file or directory. Put one" in capsys.readouterr().err
