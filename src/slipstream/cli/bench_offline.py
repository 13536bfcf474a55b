"""`slipstream bench throughput` and `latency`: a model in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from slipstream.bench.offline import OfflineResult, Shape, measure_latency, measure_throughput, offline_result
from slipstream.bench.workload import parse_lengths
from slipstream.cli.bench_files import check_writable, write_result
from slipstream.cli.load import load_llm
from slipstream.cli.options import engine_options
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.render import note
from slipstream.errors import UsageError

_SHAPE = re.compile(r"([0-9]{1,5})x([0-9]{1,7}):([0-9]{1,7})")
Model = Annotated[str, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")]
Rounds = Annotated[int, Option(help="Measured rounds; one more warms up.")]
Seed = Annotated[int, Option(help="Of lengths and token ids.")]
Name = Annotated[str | None, Option(metavar="TEXT", help="What the result is called in comparisons.")]
Output = Annotated[Path | None, Option(metavar="FILE", help="Write everything as JSON.")]
Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress.")]


@engine_options
def throughput(
    model: Model,
    *,
    requests: Annotated[int, Option(help="Requests of a round, all at once.")] = 32,
    lengths: Annotated[
        str, Option(metavar="P:O,...", help="Prompt and output tokens of each class, in equal shares.")
    ] = "16-64:16-64,128-256:32-64,512:64",
    rounds: Rounds = 5,
    seed: Seed = 0,
    name: Name = None,
    output: Output = None,
    json_: Json = False,
    quiet: Quiet = False,
    settings: Mapping[str, Any],
) -> None:
    """Tokens per second of a model with many requests at once: prefill, decode and sampling together.

    Prompts are random token ids, new in every round; answers are greedy and of exactly the wanted length.
    """
    _check(requests, rounds, output)
    classes = parse_lengths(lengths)
    with load_llm(model, settings, quiet=quiet) as llm:
        cases = measure_throughput(llm, classes, requests, rounds, seed=seed, say=_say(quiet))
        asked = {"requests": str(requests), "lengths": lengths, "rounds": str(rounds), "seed": str(seed)}
        result = offline_result("throughput", llm, cases, name=name or model, model=model, settings=asked)
    _deliver(result, output, json_)


@engine_options
def latency(
    model: Model,
    *,
    shapes: Annotated[
        str, Option(metavar="BxP:O,...", help="Requests at once, and the prompt and output tokens of each.")
    ] = "1x128:64,1x1024:16,8x128:32",
    rounds: Rounds = 5,
    seed: Seed = 0,
    name: Name = None,
    output: Output = None,
    json_: Json = False,
    quiet: Quiet = False,
    settings: Mapping[str, Any],
) -> None:
    """Time to first token and time per token of a model, for batches of equal requests.

    Prompts are random token ids, new in every round; answers are greedy and of exactly the wanted length.
    """
    _check(1, rounds, output)
    wanted = parse_shapes(shapes)
    with load_llm(model, settings, quiet=quiet) as llm:
        cases = measure_latency(llm, wanted, rounds, seed=seed, say=_say(quiet))
        asked = {"shapes": shapes, "rounds": str(rounds), "seed": str(seed)}
        result = offline_result("latency", llm, cases, name=name or model, model=model, settings=asked)
    _deliver(result, output, json_)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Raises UsageError."""
    found = []
    for term in text.split(","):
        match = _SHAPE.fullmatch(term.strip())
        numbers = [int(each) for each in match.groups()] if match is not None else [0]
        if not all(numbers):
            raise UsageError(
                f"{term.strip()!r} is not BATCHxPROMPT:OUTPUT.", where="--shapes", fix="Write 1x128:64,8x128:32."
            )
        found.append(Shape(*numbers))
    return tuple(found)


def _check(requests: int, rounds: int, output: Path | None) -> None:
    for what, number in (("--requests", requests), ("--rounds", rounds)):
        if number < 1:
            raise UsageError("must be at least 1.", where=what)
    check_writable(output)


def _say(quiet: bool) -> Any:
    return (lambda text: None) if quiet else note


def _deliver(result: OfflineResult, output: Path | None, json_: bool) -> None:
    data = msgspec.json.format(msgspec.json.encode(result), indent=1)
    if output is not None:
        write_result(output, data)
    if json_:
        print(data.decode())
        return
    for case in result.cases:
        print(case.name)
        for metric, each in case.summary.items():
            values = case.rounds[metric]
            spread = (max(values) - min(values)) / each.value if each.value else 0.0
            whole = metric == "seconds" or metric.endswith("/s")
            scale, unit = (1.0, "") if whole else (1000.0, " ms")
            mean, low, high = (f"{scale * number:.2f}" for number in (each.value, each.low, each.high))
            if len(values) == 1:
                print(f"  {metric:<16} {mean}{unit}  (one round: no interval)")
                continue
            print(f"  {metric:<16} {mean}{unit}  [{low}, {high}]  spread {spread:.1%} over {len(values)} rounds")
    print(f"peak memory {result.peak_memory / 2**20:.0f} MiB; intervals are 95 %, Student's t over the rounds")
    if output is not None:
        note(f"written to {output}")
