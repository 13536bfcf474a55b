"""Slipstream beside other engines: same file, same token ids, same threads, interleaved in one run.

    python -m benchmarks.peers MODEL.gguf [--quick] [--json] [--out DIR] [--engines slipstream,llama.cpp,openvino]

Every engine is a process of its own (benchmarks/workers), loaded once and idle while another is timed. A round times
each workload once per engine, in an order that changes from round to round; what is reported is the median over the
rounds of the paired ratio to llama.cpp, and the median rate. On a shared machine only ratios within a round mean much.
By default --quick runs Slipstream and llama.cpp, else every engine that is installed; those that are not there, and
workloads that an engine cannot run, are listed with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.program import run_program
from slipstream.errors import ModelNotFoundError

ROOT = Path(__file__).parent.parent
WORKERS = ROOT / "benchmarks" / "workers"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
BASE = "llama.cpp"


@dataclass(frozen=True)
class Workload:
    name: str
    command: str  # "prefill" or "decode"
    batch: int
    prompt: int  # tokens of each prompt
    steps: int = 0  # decode steps after it

    def request(self, rng: random.Random, vocab: int) -> dict[str, Any]:
        prompts = [[rng.randrange(100, vocab) for _ in range(self.prompt)] for _ in range(self.batch)]
        arguments: dict[str, Any] = {"prompts": prompts}
        if self.command == "decode":
            arguments["steps"] = self.steps
        return {self.command: arguments}

    @property
    def tokens(self) -> int:
        return self.batch * (self.steps if self.command == "decode" else self.prompt)


FULL = (
    Workload("decode_b1", "decode", 1, 128, 64),
    Workload("decode_b4", "decode", 4, 128, 64),
    Workload("decode_b16", "decode", 16, 128, 64),
    Workload("decode_b32", "decode", 32, 128, 64),
    Workload("prefill_512", "prefill", 1, 512),
    Workload("prefill_2048", "prefill", 1, 2048),
    Workload("decode_b1_ctx4096", "decode", 1, 4096, 32),
    Workload("decode_b8_ctx4096", "decode", 8, 4096, 16),
)
QUICK = tuple(
    Workload(w.name, w.command, w.batch, w.prompt, min(w.steps, 32))
    for w in FULL
    if "4096" not in w.name and w.batch < 32
)


@dataclass(frozen=True)
class EngineSpec:
    name: str
    python: Path
    script: str
    module: str  # that must be there


ENGINES = (
    EngineSpec("slipstream", Path(sys.executable), "slipstream_worker.py", "slipstream"),
    EngineSpec("llama.cpp", PEERS_PYTHON, "llama_cpp_worker.py", "llama_cpp"),
    EngineSpec("openvino", PEERS_PYTHON, "openvino_worker.py", "openvino_genai"),
    EngineSpec("vllm", VLLM_PYTHON, "vllm_worker.py", "vllm"),
    EngineSpec("transformers", Path(sys.executable), "transformers_worker.py", "transformers"),
)
QUICK_ENGINES = ("slipstream", BASE)


class Worker:
    """One engine's process."""

    def __init__(self, spec: EngineSpec, log: Path) -> None:
        self.name = spec.name
        self.log = log
        self._process = subprocess.Popen(
            [str(spec.python), str(WORKERS / spec.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def started(specs: list[EngineSpec], load: dict[str, Any], out: Path) -> Iterator[tuple[list[Worker], dict[str, str]]]:
    workers: list[Worker] = []
    versions: dict[str, str] = {}
    try:
        for spec in specs:
            worker = Worker(spec, out / f"{spec.name}.log")
            workers.append(worker)
            versions[spec.name] = worker.call({"load": load})["version"]
            note(f"{spec.name} {versions[spec.name]} is loaded")
        yield workers, versions
    finally:
        for worker in workers:
            worker.close()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def absence(spec: EngineSpec) -> str | None:
    """Why an engine cannot be run here; None if it can."""
    if not spec.python.exists():
        return f"there is no {spec.python.parent.parent.name} (`make peers`)"
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({spec.module!r}) is None)"
    if subprocess.run([str(spec.python), "-c", probe], check=False, cwd=ROOT).returncode:
        return f"{spec.module} is not installed in {spec.python.parent.parent.name}"
    return None


def choose(asked: str | None, quick: bool) -> tuple[list[EngineSpec], dict[str, str]]:
    """The engines to run, and why others are not."""
    known = {spec.name: spec for spec in ENGINES}
    names = list(known) if asked is None else asked.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no engine {', '.join(unknown)}; known: {', '.join(known)}")
    absent = {}
    for name in names:
        reason = absence(known[name])
        if reason is None and quick and asked is None and name not in QUICK_ENGINES:
            reason = "left out by --quick; name it with --engines"
        if reason is not None:
            absent[name] = reason
    return [known[name] for name in names if name not in absent], absent


def measure(
    workers: list[Worker], workloads: tuple[Workload, ...], rounds: int, vocab: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, str]]]:
    """{workload: {engine: tokens per second, one per round}} and {workload: {engine: why it cannot run it}}; the first
    round warms up and is dropped."""
    rng = random.Random(0)
    rates: dict[str, dict[str, list[float]]] = {w.name: {worker.name: [] for worker in workers} for w in workloads}
    refused: dict[str, dict[str, str]] = {w.name: {} for w in workloads}
    for number in range(rounds + 1):
        for workload in workloads:
            request = workload.request(rng, vocab)
            order = workers[number % len(workers) :] + workers[: number % len(workers)]
            for worker in order:
                if worker.name in refused[workload.name]:
                    continue
                answer = worker.call(request)
                if "unsupported" in answer:
                    refused[workload.name][worker.name] = answer["unsupported"]
                    del rates[workload.name][worker.name]
                    continue
                if answer["tokens"] != workload.tokens:
                    raise RuntimeError(
                        f"{worker.name} computed {answer['tokens']} tokens of {workload.name}, not {workload.tokens}"
                    )
                if number:
                    rates[workload.name][worker.name].append(answer["tokens"] / answer["seconds"])
            note(f"round {number}: {workload.name}")
    return rates, {name: reasons for name, reasons in refused.items() if reasons}


def summary(rates: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    medians = {w: {e: round(statistics.median(r), 2) for e, r in engines.items()} for w, engines in rates.items()}
    ratios = {
        workload: {
            engine: round(statistics.median(a / b for a, b in zip(engines["slipstream"], own, strict=True)), 3)
            for engine, own in engines.items()
            if engine != "slipstream"
        }
        for workload, engines in rates.items()
        if engines.get("slipstream")
    }
    base = {workload: own[BASE] for workload, own in ratios.items() if BASE in own}
    return {"tokens_per_second": medians, "ratios_over_llama_cpp": base, "ratios_over": ratios}


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(result["tokens_per_second"])
    engines = list(result["versions"])
    figure, axes = pyplot.subplots(figsize=(1.5 * len(names) + 2, 4.5))
    width = 0.8 / len(engines)
    for index, engine in enumerate(engines):
        values = [result["tokens_per_second"][name].get(engine, 0) for name in names]
        at = [i + (index - (len(engines) - 1) / 2) * width for i in range(len(names))]
        axes.bar(at, values, width, label=f"{engine} {result['versions'][engine]}")
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylabel("tokens/s (median)")
    axes.set_title(f"{Path(result['model']).name}, {result['threads']} threads, {result['rounds']} interleaved rounds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--quick", action="store_true", help="fewer workloads and rounds: within 10 minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers", help="folder for results and logs")
    parser.add_argument("--engines", help="comma-separated; default: slipstream,llama.cpp with --quick, else all")
    parser.add_argument("--only", help="comma-separated workloads by name; default: all, or the quick ones")
    parser.add_argument("--rounds", type=int, help="default: 3 with --quick, else 7")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=49000, help="token ids are drawn below this")
    args = parser.parse_args()
    if not Path(args.model).is_file():
        raise ModelNotFoundError("there is no such file.", where=args.model)
    workloads = QUICK if args.quick else FULL
    if args.only:
        names = args.only.split(",")
        unknown = sorted(set(names) - {w.name for w in workloads})
        if unknown:
            parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(w.name for w in workloads)}")
        workloads = tuple(w for w in workloads if w.name in names)
    rounds = args.rounds or (3 if args.quick else 7)
    specs, absent = choose(args.engines, args.quick)
    for name, reason in absent.items():
        note(f"{name} is not run: {reason}")
    if not specs:
        raise SystemExit("no engine is left to run")
    args.out.mkdir(parents=True, exist_ok=True)
    longest = max(w.prompt + w.steps + 2 for w in workloads)
    load = {
        "model": str(Path(args.model).resolve()),
        "threads": args.threads,
        "max_tokens": longest,
        "max_seqs": max(w.batch for w in workloads),
    }
    with started(specs, load, args.out) as (workers, versions):
        rates, refused = measure(workers, workloads, rounds, args.vocab)
    result = {
        "model": args.model,
        "threads": args.threads,
        "rounds": rounds,
        "versions": versions,
        "absent": absent,
        "unsupported": refused,
        "workloads": [asdict(w) for w in workloads],
        **summary(rates),
        "raw": rates,
    }
    (args.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    if args.json:
        print(json.dumps(result))
    else:
        plot(result, args.out / "peers.png")
        for name, engines in result["tokens_per_second"].items():
            ratio = result["ratios_over_llama_cpp"].get(name)
            shown = "  ".join(f"{engine} {rate:8.1f}" for engine, rate in engines.items())
            print(f"{name:<20} {shown}" + (f"   {ratio:.2f}x llama.cpp" if ratio else ""))
        for name, reasons in refused.items():
            for engine, reason in reasons.items():
                print(f"{name:<20} not by {engine}: {reason}")
        for name, reason in absent.items():
            print(f"{name} was not run: {reason}")
        note(f"written to {args.out}")


if __name__ == "__main__":
    run_program(main)
