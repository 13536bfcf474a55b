"""Is B better than A? Paired where the runs can be paired, with an interval, and "within noise" as an answer.

What is compared is B over A as a ratio of means, for each metric of each level:

* Output tokens/s of a load test: the equal parts of the windows are drawn anew (bootstrap), of each run on its own.
* Its latencies: requests of equal number asked for the same lengths, so they are paired; pairs are drawn anew.
* Rounds of an offline benchmark are paired by number; Student's t on the logarithms of their ratios.
* With folders of results on both sides whole runs are paired, in the order of their time, in the same way. Only that
  sees how much the machine itself changes between runs.

A verdict other than "within noise" needs a 95 % interval that leaves out 1, and a change of at least `threshold`. One
run of each knows nothing of the changes between runs: then the interval must lie beyond an allowance for `drift` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.bench.record import Level, RequestRecord, ServeResult
from slipstream.bench.stats import CONFIDENCE, RESAMPLES, nearest_rank, student_t

Verdict = Literal["better", "worse", "within noise"]
Floats = NDArray[np.float64]

THRESHOLD = 0.02
DRIFT = 0.10  # that a machine may be faster or slower in another run, for comparisons of one run each
MIN_DRAWN = 8  # pairs for a bootstrap
MIN_ROUNDS = 3  # pairs for Student's t


class Samples(msgspec.Struct, frozen=True):
    """One metric of one run: numbers by pair key. `paired`: equal keys belong together."""

    metric: str
    higher_is_better: bool
    paired: bool
    values: dict[int, float]


class Comparison(msgspec.Struct, frozen=True):
    """`ratio` is B over A, none where A is zero. `pairs` is how many pairs (or parts of the smaller run) the interval
    rests on."""

    level: str
    metric: str
    a: float
    b: float
    ratio: float | None
    low: float
    high: float
    pairs: int
    verdict: Verdict
    why: str


def serve_samples(level: Level) -> list[Samples]:
    """The metrics of one level of a load test; none of a level without an answer."""
    if not level.summary.succeeded:
        return []
    width = level.summary.seconds / len(level.tokens_by_slice)
    found = [
        Samples("output tokens/s", True, False, {i: each / width for i, each in enumerate(level.tokens_by_slice)}),
        _latency(level.records, "TTFT", lambda record: record.ttft),
        _latency(level.records, "TPOT", lambda record: record.tpot),
        _latency(level.records, "ITL p99", lambda record: nearest_rank(record.gaps, 0.99) if record.gaps else None),
        _latency(level.records, "end to end", lambda record: record.e2e),
    ]
    return [each for each in found if each.values]


def compare_samples(
    level: str, a: Samples, b: Samples, *, threshold: float = THRESHOLD, drift: float = 0.0, seed: int = 0
) -> Comparison:
    """One metric of two load tests."""
    if a.paired:
        first, second = _matched(a, b)
    else:
        first, second = (np.array(list(each.values.values())) for each in (a, b))
    mean_a, mean_b, pairs = _mean(first), _mean(second), min(len(first), len(second))
    if pairs < MIN_DRAWN or mean_a <= 0:
        return _too_few(level, a.metric, mean_a, mean_b, pairs, MIN_DRAWN)
    rng = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        of_a = rng.integers(0, len(first), len(first))
        of_b = of_a if a.paired else rng.integers(0, len(second), len(second))
        below = float(first[of_a].mean())
        ratios[number] = float(second[of_b].mean()) / below if below else np.inf
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(each) for each in np.quantile(ratios, (tail, 1 - tail), method="nearest"))
    ratio = mean_b / mean_a
    verdict, why = judge(ratio, low, high, a.higher_is_better, threshold, drift)
    return Comparison(level, a.metric, mean_a, mean_b, ratio, low, high, pairs, verdict, why)


def compare_rounds(
    level: str, a: Samples, b: Samples, *, threshold: float = THRESHOLD, drift: float = 0.0
) -> Comparison:
    """One metric of two offline benchmarks, round by round; or of several runs, each with one number."""
    first, second = _matched(a, b)
    pairs = len(first)
    mean_a, mean_b = _mean(first), _mean(second)
    if pairs < MIN_ROUNDS or not (first > 0).all() or not (second > 0).all():
        return _too_few(level, a.metric, mean_a, mean_b, pairs, MIN_ROUNDS)
    logs = np.log(second / first)
    half = student_t(pairs - 1) * float(logs.std(ddof=1)) / math.sqrt(pairs)
    middle = float(logs.mean())
    ratio, low, high = (math.exp(each) for each in (middle, middle - half, middle + half))
    verdict, why = judge(ratio, low, high, a.higher_is_better, threshold, drift)
    return Comparison(level, a.metric, mean_a, mean_b, ratio, low, high, pairs, verdict, why)


def judge(
    ratio: float, low: float, high: float, higher_is_better: bool, threshold: float, drift: float = 0.0
) -> tuple[Verdict, str]:
    if low <= 1 <= high:
        return "within noise", "the interval holds 1"
    if low / (1 + drift) <= 1 <= high * (1 + drift):
        return "within noise", f"with {drift:.1%} of drift between runs the interval holds 1"
    if abs(ratio - 1) < threshold:
        return "within noise", f"less than {threshold:.1%}"
    return ("better" if (ratio > 1) == higher_is_better else "worse"), "the interval leaves out 1"


def same_questions(a: ServeResult, b: ServeResult) -> list[str]:
    """Why the two results are not about the same load; empty if they are."""
    reasons = [
        f"{name}: {a.workload.get(name, 'none')} and {b.workload.get(name, 'none')}"
        for name in sorted(a.workload.keys() | b.workload.keys())
        if name not in ("tokens per word", "tokens around a prompt") and a.workload.get(name) != b.workload.get(name)
    ]
    if a.api != b.api:
        reasons.append(f"API: {a.api} and {b.api}")
    if a.settings.get("ignore_eos") != b.settings.get("ignore_eos"):
        reasons.append("one ran with ignore_eos and the other without")
    return reasons


def _latency(records: Sequence[RequestRecord], metric: str, value: Callable[[RequestRecord], float | None]) -> Samples:
    found = {each.index: value(each) for each in records if each.error is None}
    return Samples(metric, False, True, {index: each for index, each in found.items() if each is not None})


def _matched(a: Samples, b: Samples) -> tuple[Floats, Floats]:
    keys = sorted(a.values.keys() & b.values.keys())
    return np.array([a.values[key] for key in keys]), np.array([b.values[key] for key in keys])


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _too_few(level: str, metric: str, a: float, b: float, pairs: int, needed: int) -> Comparison:
    why = f"{pairs} pairs, of which {needed} are needed" if pairs < needed else "a value is zero"
    return Comparison(level, metric, a, b, b / a if a else None, 0.0, 0.0, pairs, "within noise", why)
