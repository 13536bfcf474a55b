"""Reading result files back, and comparing what two files or two folders of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from slipstream.bench import offline, record
from slipstream.bench.compare import (
    DRIFT,
    THRESHOLD,
    Comparison,
    Samples,
    compare_rounds,
    compare_samples,
    same_questions,
    serve_samples,
)
from slipstream.bench.offline import HIGHER_IS_BETTER, OfflineResult
from slipstream.bench.record import ServeResult
from slipstream.errors import UsageError

Result = ServeResult | OfflineResult


class _Head(msgspec.Struct):
    format: str


def read_result(path: Path) -> Result:
    """Raises UsageError for a file that no `slipstream bench` of this version wrote."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    fix = "Give a file that `slipstream bench ... --output` wrote."
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format == record.FORMAT:
            return msgspec.json.decode(data, type=ServeResult)
        if head.format == offline.FORMAT:
            return msgspec.json.decode(data, type=OfflineResult)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"is no result of a benchmark: {error}.", where=str(path), fix=fix) from error
    raise UsageError(f"has the format {head.format!r}, which is not read here.", where=str(path), fix=fix)


def read_results(path: Path) -> list[Result]:
    """One file's result, or those of all .json files of a folder in the order of their time."""
    if not path.is_dir():
        return [read_result(path)]
    found = [read_result(each) for each in sorted(path.glob("*.json"))]
    if not found:
        raise UsageError("holds no .json file.", where=str(path))
    return sorted(found, key=lambda result: result.date)


def compare_results(
    a: Sequence[Result], b: Sequence[Result], *, threshold: float = THRESHOLD, drift: float = DRIFT
) -> tuple[list[Comparison], list[str]]:
    """What is better or worse in B, and reasons to doubt that the two can be compared. Raises UsageError when they
    cannot be: different kinds, no level in common, unequal numbers of runs. `drift` counts for one run each."""
    if len({_kind(each) for each in (*a, *b)}) > 1:
        kinds = " and ".join(sorted({_kind(each) for each in (*a, *b)}))
        raise UsageError(f"results of {kinds} cannot be compared.")
    if len(a) != len(b):
        raise UsageError(f"{len(a)} runs and {len(b)} cannot be paired.", fix="Give as many results of A as of B.")
    doubts = _doubts(a[0], b[0])
    tables_a, tables_b = [_samples(each) for each in a], [_samples(each) for each in b]
    levels = [level for level in tables_a[0] if all(level in each for each in (*tables_a, *tables_b))]
    if not levels:
        raise UsageError("the results have no level in common in which requests were answered.")
    found: list[Comparison] = []
    for level in levels:
        for metric in tables_a[0][level]:
            runs = [each[level].get(metric) for each in (*tables_a, *tables_b)]
            if any(each is None for each in runs):
                continue
            present = [each for each in runs if each is not None]
            of_a, of_b = present[: len(a)], present[len(a) :]
            found.append(_one(level, of_a, of_b, isinstance(a[0], ServeResult), threshold, drift))
    return found, doubts


def _one(level: str, a: list[Samples], b: list[Samples], load_test: bool, threshold: float, drift: float) -> Comparison:
    if len(a) > 1:
        return compare_rounds(level, _of_runs(a), _of_runs(b), threshold=threshold)
    if load_test:
        return compare_samples(level, a[0], b[0], threshold=threshold, drift=drift)
    return compare_rounds(level, a[0], b[0], threshold=threshold, drift=drift)


def _of_runs(runs: list[Samples]) -> Samples:
    """One number per run: its mean."""
    means = {number: sum(each.values.values()) / len(each.values) for number, each in enumerate(runs)}
    return msgspec.structs.replace(runs[0], paired=True, values=means)


def _kind(result: Result) -> str:
    return "bench serve" if isinstance(result, ServeResult) else f"bench {result.kind}"


def _samples(result: Result) -> dict[str, dict[str, Samples]]:
    """By level and metric."""
    if isinstance(result, ServeResult):
        return {
            f"{level.kind} {level.value:g}": {each.metric: each for each in serve_samples(level)}
            for level in result.levels
            if level.summary.succeeded
        }
    return {
        case.name: {
            metric: Samples(metric, metric in HIGHER_IS_BETTER, True, dict(enumerate(values)))
            for metric, values in case.rounds.items()
        }
        for case in result.cases
    }


def _doubts(a: Result, b: Result) -> list[str]:
    doubts = []
    if isinstance(a, ServeResult) and isinstance(b, ServeResult):
        doubts += [f"not the same load: {reason}" for reason in same_questions(a, b)]
        for name, each in (("A", a), ("B", b)):
            failed = sum(sum(level.summary.errors.values()) for level in each.levels)
            if failed:
                doubts.append(f"{failed} requests of {name} failed and are in no latency")
    machine_a = a.client if isinstance(a, ServeResult) else a.machine
    machine_b = b.client if isinstance(b, ServeResult) else b.machine
    if machine_a.get("processor") != machine_b.get("processor"):
        doubts.append(f"not the same processor: {machine_a.get('processor')} and {machine_b.get('processor')}")
    if a.model != b.model:
        doubts.append(f"not the same model: {a.model} and {b.model}")
    return doubts
