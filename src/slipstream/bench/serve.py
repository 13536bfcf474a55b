"""`bench serve`: a sweep of load levels against one server."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from slipstream.bench.api import Api, Dialect, find_model, probe
from slipstream.bench.connection import Client
from slipstream.bench.endpoint import Endpoint
from slipstream.bench.knee import find_knee, nothing_measured
from slipstream.bench.loadgen import LevelRunner, Load
from slipstream.bench.measure import TokenCount, summarise_level
from slipstream.bench.record import FORMAT, Level, ServeResult
from slipstream.bench.slo import Objective
from slipstream.bench.words import Calibration
from slipstream.bench.workload import DEFAULT_LENGTHS, Mixed, SharedPrefix, Source, Workload, parse_lengths
from slipstream.bench.workload_files import Trace, read_chats, read_trace
from slipstream.errors import UsageError
from slipstream.hw.info import read_hardware
from slipstream.version import installed_version

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """`name`: mixed, shared-prefix, a .jsonl file of chats or a .csv file with a trace."""

    name: str = "mixed"
    lengths: str = DEFAULT_LENGTHS
    prefix_groups: int = 8
    prefix_tokens: int = 512
    max_tokens: int = 128  # of chats that do not say
    length_cap: int | None = None  # of a trace's requests, prompt and output together
    seed: int = 0
    salt: str = ""

    def build(self, calibration: Calibration) -> Workload:
        """Raises UsageError."""
        source = Source(self.seed, self.salt, calibration)
        if self.name == "mixed":
            return Mixed(parse_lengths(self.lengths), source)
        if self.name == "shared-prefix":
            return SharedPrefix(self.prefix_groups, self.prefix_tokens, (16, 128), (32, 96), source)
        if self.name.endswith(".csv"):
            return read_trace(Path(self.name), source, cap=self.length_cap)
        if self.name.endswith(".jsonl"):
            return read_chats(Path(self.name), source, default_tokens=self.max_tokens)
        raise UsageError(
            f"there is no workload {self.name!r}.",
            where="--workload",
            fix="Use mixed, shared-prefix, a .jsonl file of chats, or a .csv file with a trace.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    url: str
    model: str | None = None
    api: Api = "completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    workload: WorkloadOptions = WorkloadOptions()
    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    speedup: float | None = None  # of a trace's own times
    seconds: float = 300.0
    warmup: float = 10.0
    max_requests: int | None = None
    timeout: float = 600.0
    slo: tuple[Objective, ...] = ()
    ignore_eos: bool = True
    temperature: float = 0.0
    name: str = ""

    def loads(self) -> tuple[Load, ...]:
        """Raises UsageError unless exactly one of concurrency, rates and speedup is given."""
        given = [bool(self.concurrency), bool(self.rates), self.speedup is not None]
        if sum(given) != 1:
            raise UsageError("give one of --concurrency, --rate and --speedup.")
        kind, values = (
            ("concurrency", self.concurrency)
            if self.concurrency
            else ("rate", self.rates)
            if self.rates
            else ("trace", (self.speedup or 1.0,))
        )
        return tuple(
            Load(kind, float(value), self.seconds, self.warmup, self.max_requests, self.timeout) for value in values
        )


class SweepInterrupted(Exception):  # noqa: N818  no error: what was measured is complete
    """Cancelled after at least one level; `result` has the finished ones."""

    def __init__(self, result: ServeResult) -> None:
        super().__init__("the sweep was interrupted")
        self.result = result


async def run_serve(
    options: ServeOptions,
    *,
    count_tokens: TokenCount | None = None,
    say: Say = lambda line: None,
    on_level: Callable[[Level], None] = lambda level: None,
    progress: Callable[[int, float], None] | None = None,
) -> ServeResult:
    """Raises UsageError for options, FailedRequestError when the server cannot be used at all; failures of single
    requests are counted instead. A sweep ends early after a level without one answer. Cancelled after a level has
    been finished it raises SweepInterrupted, which has those that were."""
    loads = options.loads()
    workload = options.workload.build(Calibration())  # before any request: a bad file is the first thing to say
    if loads[0].kind == "trace" and not isinstance(workload, Trace):
        raise UsageError("--speedup replays a trace.", fix="Give one with --workload FILE.csv.")
    client = Client(Endpoint.parse(options.url), options.headers)
    try:
        model = options.model or await find_model(client)
        dialect = Dialect(options.api, model, ignore_eos=options.ignore_eos, temperature=options.temperature)
        source = Source(options.workload.seed, options.workload.salt)
        texts = (source.text("probe 0", 16), source.text("probe 1", 80))
        found = await probe(client, dialect, texts)
        notes = list(found.notes)
        for note in notes:
            say(note)
        workload = options.workload.build(found.calibration)
        levels: list[Level] = []
        interrupted = False
        for number, load in enumerate(loads):
            runner = LevelRunner(
                client,
                found.dialect,
                workload,
                load,
                level=number,
                seed=options.workload.seed,
                keep_text=count_tokens is not None,
                progress=progress,
            )
            try:
                run = await runner.run()
            except asyncio.CancelledError:
                if not levels:
                    raise
                interrupted = True
                notes.append(f"interrupted at {load.kind} {load.value:g}; it and later levels are missing")
                break
            level = summarise_level(run, options.slo, count_tokens, seed=options.workload.seed)
            levels.append(level)
            on_level(level)
            nothing = nothing_measured(level)
            if nothing is not None:
                notes.append(f"the sweep ended at {load.kind} {load.value:g}: {nothing}")
                break
    finally:
        client.close()
    result = ServeResult(
        format=FORMAT,
        name=options.name or model,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        url=options.url,
        api=options.api,
        model=model,
        version=installed_version(),
        client=_client_facts(),
        workload={
            **workload.describe(),
            "seed": str(options.workload.seed),
            "tokens per word": f"{found.calibration.per_word:.3f}",
            "tokens around a prompt": f"{found.calibration.fixed:.1f}",
        },
        settings={
            "seconds per level": f"{options.seconds:g}",
            "warm-up": f"{options.warmup:g} s",
            "ignore_eos": "yes" if found.dialect.ignore_eos else "no",
            "temperature": f"{options.temperature:g}",
            "running usage": "yes" if found.dialect.running_usage else "no",
        },
        slo=tuple(map(str, options.slo)),
        levels=tuple(levels),
        knee=find_knee(levels),
        notes=tuple(notes),
    )
    if interrupted:
        raise SweepInterrupted(result)
    return result


def _client_facts() -> dict[str, str]:
    hardware = read_hardware()
    return {
        "processor": hardware.cpu_model,
        "usable processors": str(hardware.usable_cpus),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
