"""Slipstream's server beside llama-server and vLLM's: the same mixed load over HTTP, interleaved in one run.

    python -m benchmarks.serving MODEL.gguf [--servers slipstream,llama-server,vllm] [--rounds 3] [--seconds 60]
                                 [--concurrency 16] [--json] [--out DIR]
    python -m benchmarks.serving MODEL.gguf --overhead     (see benchmarks/serving_overhead.py)

Every server is started once and has one turn per round, in an order that changes from round to round. A turn is one
level of `slipstream bench serve`: --concurrency requests open at any time, --warmup seconds of load, then --seconds
that are measured, then load until the last request that began in them is answered. Requests of a round have the same
texts and lengths for every server (thirds of short, medium and long ones, --lengths), those of another round have
others. Output tokens/s are those that arrived in the measured seconds. TTFT and TPOT are as in docs/benchmarking.md.

What makes the counts honest: answers have exactly the asked length (ignore_eos), and for every request the server's
count is compared with what was asked; the number of chunks, which the client counts itself, is shown beside it. A turn
with failed or short answers is marked, and no target counts as met with one. Ratios are Slipstream over the other
within each round; the median over the rounds is what the targets look at, and for P99 TPOT the percentile of all
rounds' requests together too. The processor time of idle servers during another's turn is measured and shown.

vLLM does not read GGUF files on a CPU: it serves the same architecture and tokenizer with random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import serving_overhead
from benchmarks.peers import ROOT, note
from benchmarks.servers import LLAMA_SERVER, SERVERS, Server, Setup, choose, relative, started
from benchmarks.serving_plot import plot
from slipstream.bench.record import Level, RequestRecord, ServeResult, encode
from slipstream.bench.serve import ServeOptions, WorkloadOptions, run_serve
from slipstream.bench.stats import nearest_rank
from slipstream.bench.workload import DEFAULT_LENGTHS, parse_lengths
from slipstream.hw.info import read_hardware

OWN = "slipstream"
MARGIN = 64  # tokens of context beyond the longest request: words are not of exactly equal length
REST = 3.0  # seconds between turns, in which a server drops the requests that were left open
RATE_TARGETS = {"llama-server": 3.5, "vllm": 4.0}
IDLE_SHARE = 0.02  # of one processor; more is noted
LATENCIES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")


@dataclass(frozen=True, slots=True)
class Turn:
    """One server in one round. Times in seconds, shares in processors."""

    round: int
    server: str
    output_tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    e2e_p50: float
    requests: int
    failed: int
    miscounted: int  # answers of another length than asked, by the server's or the client's count
    tokens_per_chunk: float
    server_processors: float
    client_processors: float
    idle_processors: dict[str, float]  # of the other servers
    tpots: tuple[float, ...]

    @property
    def clean(self) -> bool:
        return not self.failed and not self.miscounted


def read_turn(
    number: int, server: str, level: Level, server_processors: float = 0.0, idle: Mapping[str, float] | None = None
) -> Turn:
    """Raises SystemExit when nothing was answered."""
    summary = level.summary
    if summary.output_tokens_per_s is None or not {"ttft", "tpot"} <= summary.latency.keys():
        raise SystemExit(
            f"{server} answered nothing that began in the measured time of round {number} "
            f"(failures: {summary.errors}); give more --seconds and --warmup"
        )
    good = [each for each in level.records if each.error is None]
    ttft, tpot = (summary.latency[name].quantiles for name in ("ttft", "tpot"))
    return Turn(
        number,
        server,
        summary.output_tokens_per_s.value,
        ttft["p50"].value,
        ttft["p99"].value,
        tpot["p50"].value,
        tpot["p99"].value,
        summary.latency["e2e"].quantiles["p50"].value,
        requests=summary.requests,
        failed=summary.requests - summary.succeeded,
        miscounted=sum(
            {each.asked_tokens} != {each.server_tokens, each.counted_tokens or each.server_tokens} for each in good
        ),
        tokens_per_chunk=summary.tokens.tokens_per_chunk,
        server_processors=server_processors,
        client_processors=summary.overhead.cpu_share,
        idle_processors=dict(idle or {}),
        tpots=tuple(value for each in good if (value := each.tpot) is not None),
    )


def _counts(record: RequestRecord) -> set[int | None]:
    """What the server says at the end and, where it counts chunk by chunk, what these make together."""
    return {record.server_tokens, record.server_tokens if record.counted_tokens is None else record.counted_tokens}


def summarise(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians by server, Slipstream's ratios to each other one, and which targets are met."""
    by_server: dict[str, list[Turn]] = {}
    for turn in turns:
        by_server.setdefault(turn.server, []).append(turn)
    names = ("output_tokens_per_s", *LATENCIES)
    medians = {
        server: {
            **{name: statistics.median(getattr(each, name) for each in own) for name in names},
            "tpot_p99_all_rounds": nearest_rank([value for each in own for value in each.tpots], 0.99),
        }
        for server, own in by_server.items()
    }
    found: dict[str, Any] = {"medians": medians, "ratios": {}, "targets": {}}
    ours = by_server.get(OWN, [])
    for server, own in by_server.items():
        if server == OWN or not ours:
            continue
        ratios = {name: [getattr(a, name) / getattr(b, name) for a, b in zip(ours, own, strict=True)] for name in names}
        rate = statistics.median(ratios["output_tokens_per_s"])
        tail = statistics.median(ratios["tpot_p99"])
        pooled = medians[OWN]["tpot_p99_all_rounds"] / medians[server]["tpot_p99_all_rounds"]
        found["ratios"][server] = {
            **{name: {"by_round": values, "median": statistics.median(values)} for name, values in ratios.items()},
            "tpot_p99_all_rounds": pooled,
        }
        clean = all(each.clean for each in (*ours, *own))
        target = RATE_TARGETS[server]
        found["targets"][server] = {
            "output_tokens_per_s": {"at_least": target, "is": rate, "met": clean and rate >= target},
            "tpot_p99": {"at_most": 1.0, "is": max(tail, pooled), "met": clean and max(tail, pooled) <= 1.0},
        }
    return found


def notes_on(turns: Sequence[Turn], warmup: float, seconds: float) -> list[str]:
    """What to know before believing the numbers. All requests begin at once, so a server has to finish about a whole
    one per stream before it has the even mix of prompts and answers that it will have from then on."""
    notes = []
    for turn in turns:
        where = f"round {turn.round}, {turn.server}"
        if not turn.clean:
            notes.append(f"{where}: {turn.failed} of {turn.requests} failed, {turn.miscounted} of another length")
        for other, share in turn.idle_processors.items():
            if share > IDLE_SHARE:
                notes.append(f"{where}: idle {other} took {share:.1%} of a processor")
        if turn.e2e_p50 > min(warmup, seconds):
            notes.append(f"{where}: half of the requests take over {turn.e2e_p50:.0f} s; raise --warmup and --seconds")
        if turn.client_processors > 0.25:
            notes.append(f"{where}: the client took {turn.client_processors:.0%} of a processor")
    return notes


def turn_options(url: str, number: int, args: argparse.Namespace) -> ServeOptions:
    """Lengths and words of a round are a function of its number alone."""
    return ServeOptions(
        url=url,
        workload=WorkloadOptions(lengths=args.lengths, seed=number, salt=f"round {number}"),
        concurrency=(args.concurrency,),
        seconds=args.seconds,
        warmup=args.warmup,
    )


def take_turn(
    number: int, server: Server, others: Sequence[Server], args: argparse.Namespace
) -> tuple[Turn, ServeResult]:
    before = {each.name: each.cpu_seconds() for each in (server, *others)}
    began = time.monotonic()
    result = asyncio.run(run_serve(turn_options(server.url, number, args), say=lambda text: None))
    wall = time.monotonic() - began
    shares = {each.name: (each.cpu_seconds() - before[each.name]) / wall for each in (server, *others)}
    return read_turn(number, server.name, result.levels[0], shares.pop(server.name), shares), result


def measure(servers: Sequence[Server], args: argparse.Namespace) -> list[Turn]:
    turns = []
    for number in range(args.rounds):
        first = number % len(servers)
        for server in (*servers[first:], *servers[:first]):
            time.sleep(REST)
            turn, result = take_turn(number, server, [each for each in servers if each is not server], args)
            folder = args.out / server.name
            folder.mkdir(exist_ok=True)
            (folder / f"round-{number}.json").write_bytes(encode(result))
            turns.append(turn)
            note(line(turn))
            for text in result.notes:
                note(f"  {server.name}: {text}")
    return turns


def line(turn: Turn) -> str:
    ms = {name: f"{1e3 * getattr(turn, name):.0f}" for name in LATENCIES}
    return (
        f"round {turn.round} {turn.server:<13} {turn.output_tokens_per_s:7.1f} tokens/s   "
        f"TTFT {ms['ttft_p50']} / {ms['ttft_p99']} ms   TPOT {ms['tpot_p50']} / {ms['tpot_p99']} ms (p50 / p99)   "
        f"{turn.requests} requests, {turn.failed} failed, {turn.miscounted} miscounted, "
        f"{turn.tokens_per_chunk:.2f} tokens per chunk, processors {turn.server_processors:.2f} + client "
        f"{turn.client_processors:.2f}"
    )


def verdicts(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for server, targets in result["targets"].items():
        ratios = result["ratios"][server]
        rate, tail = targets["output_tokens_per_s"], targets["tpot_p99"]
        rounds = " / ".join(f"{each:.2f}" for each in ratios["output_tokens_per_s"]["by_round"])
        tails = " / ".join(f"{each:.2f}" for each in ratios["tpot_p99"]["by_round"])
        lines += [
            f"output tokens/s over {server}: {rate['is']:.2f} (by round {rounds}); "
            f"aim {rate['at_least']}: {'met' if rate['met'] else 'MISSED'}",
            f"P99 TPOT over {server}: {ratios['tpot_p99']['median']:.2f} (by round {tails}), all rounds "
            f"together {ratios['tpot_p99_all_rounds']:.2f}; aim 1 at most: {'met' if tail['met'] else 'MISSED'}",
        ]
    return lines


def longest(lengths: str) -> int:
    return max(each.prompt[1] + each.output[1] for each in parse_lengths(lengths)) + MARGIN


def compare(args: argparse.Namespace, setup: Setup) -> dict[str, Any]:
    specs, absent = choose(args.servers.split(","), setup)
    for name, reason in absent.items():
        note(f"{name} is not run: {reason}")
    if not specs:
        raise SystemExit("no server is left to run")
    with started(specs, setup) as servers:
        facts = {
            "versions": {each.name: each.version() for each in servers},
            "commands": {each.name: relative(each.command) for each in servers},
        }
        turns = measure(servers, args)
    return {
        "model": setup.model.name,
        "machine": f"{read_hardware().cpu_model}, {platform.system()} {platform.release()}",
        **{name: getattr(args, name) for name in ("threads", "concurrency", "rounds", "seconds", "warmup", "lengths")},
        **facts,
        "absent": absent,
        "notes": notes_on(turns, args.warmup, args.seconds),
        **summarise(turns),
        "turns": [{name: value for name, value in asdict(each).items() if name != "tpots"} for each in turns],
    }


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--servers", default=",".join(spec.name for spec in SERVERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="measured per turn")
    parser.add_argument("--warmup", type=float, default=60.0, help="seconds of load before them")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", default=DEFAULT_LENGTHS, help="as of `slipstream bench serve`")
    parser.add_argument("--llama-server", type=Path, default=LLAMA_SERVER, help="the program")
    parser.add_argument("--vllm-dtype", default="float32")
    parser.add_argument("--vllm-preload", default="", help="libraries for its LD_PRELOAD, colon-separated")
    parser.add_argument(
        "--extra", action="append", default=[], metavar="SERVER=OPTIONS", help="more options for a server"
    )
    parser.add_argument("--overhead", action="store_true", help="HTTP against the engine in this process instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "serving", help="folder for results and logs")
    return parser


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers are ended too
    parser = options()
    args = parser.parse_args()
    if min(args.rounds, args.concurrency, args.threads) < 1 or args.seconds <= 0 or args.warmup < 0:
        parser.error("--rounds, --concurrency and --threads are 1 at least, --seconds above 0, --warmup not below")
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    setup = Setup(
        model=args.model.resolve(),
        threads=args.threads,
        concurrency=args.concurrency,
        max_tokens=longest(args.lengths),
        out=args.out,
        llama_server=args.llama_server.resolve(),
        vllm_dtype=args.vllm_dtype,
        vllm_preload=args.vllm_preload,
        extra={name: shlex.split(more) for name, _, more in (each.partition("=") for each in args.extra)},
    )
    if args.overhead:
        result = serving_overhead.run(setup, args.rounds)
        lines = serving_overhead.verdicts(result)
        (args.out / "overhead.json").write_text(json.dumps(result, indent=1) + "\n")
    else:
        result = compare(args, setup)
        lines = [*verdicts(result), *(f"note: {each}" for each in result["notes"])]
        (args.out / "serving.json").write_text(json.dumps(result, indent=1) + "\n")
        plot(result, args.out / "serving.png")
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(lines))
    note(f"written to {args.out}")


if __name__ == "__main__":
    main()
