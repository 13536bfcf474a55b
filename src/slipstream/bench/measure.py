"""From what the client saw of one level to records and a summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, cast

import msgspec
import numpy as np

from slipstream.bench.loadgen import LevelRun, Sample
from slipstream.bench.record import CountedBy, Level, LevelSummary, Overhead, RequestRecord, TokenCheck
from slipstream.bench.slo import Objective
from slipstream.bench.stats import Distribution, distribution, mean_interval, nearest_rank

TokenCount = Callable[[str], int]

SLICES = 20  # of a window, for the interval of the throughput


def summarise_level(
    run: LevelRun, slo: Sequence[Objective], count_tokens: TokenCount | None, *, seed: int = 0
) -> Level:
    """`count_tokens` is the tokenizer, where there is one; it runs here, after the load."""
    records = [_record(each, run.start, count_tokens) for each in run.samples if each.measured]
    records.sort(key=lambda record: record.index)
    by_slice = _tokens_by_slice(run, count_tokens)
    kind = cast(Literal["concurrency", "rate", "trace"], run.load.kind)
    summary = _summary(run, records, by_slice, slo, count_tokens is not None, seed)
    return Level(kind, run.load.value, summary, tuple(by_slice), tuple(_running(run)), tuple(records))


def meets_alone(record: RequestRecord, objective: Objective) -> bool:
    """Whether one request is within an objective's limit; its gaps by their own percentile."""
    if record.error is not None:
        return False
    if objective.metric == "itl":
        return not record.gaps or nearest_rank(record.gaps, objective.quantile) <= objective.limit
    value = getattr(record, objective.metric)
    return value is None or value <= objective.limit


def meets_slo(records: Sequence[RequestRecord], slo: Sequence[Objective]) -> bool:
    """Whether the percentiles of all requests are within the limits; a failed request counts as infinitely slow."""
    for objective in slo:
        values: list[float] = []
        for record in records:
            if record.error is not None:
                values.append(math.inf)
            elif objective.metric == "itl":
                values.extend(record.gaps)
            elif (value := getattr(record, objective.metric)) is not None:
                values.append(value)
        if not values or nearest_rank(values, objective.quantile) > objective.limit:
            return False
    return True


def _record(sample: Sample, start: float, count_tokens: TokenCount | None) -> RequestRecord:
    answer, usage = sample.answer, sample.answer.usage
    details = usage.prompt_tokens_details if usage else None
    record = RequestRecord(
        index=sample.index,
        started=_rounded(sample.due - start),
        group=sample.item.group,
        late=_rounded(sample.sent - sample.due),
        asked_tokens=sample.item.max_tokens,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=sum(answer.counts) or len(answer.times),
        error=sample.error,
        message=sample.message,
    )
    if sample.error is not None:
        return record
    server = usage.completion_tokens if usage else None
    counted = sum(answer.counts) if answer.counts else None
    if count_tokens is not None:
        counted = count_tokens("".join(answer.text))
    whole = len(answer.counts) == len(answer.times)
    return msgspec.structs.replace(
        record,
        output_tokens=server or counted or len(answer.times),
        ttft=_rounded(answer.times[0] - sample.due),
        e2e=_rounded(answer.times[-1] - sample.due),
        gaps=tuple(_rounded(b - a) for a, b in pairwise(answer.times)),
        chunk_tokens=tuple(answer.counts) if whole and set(answer.counts) != {1} else (),
        counted_tokens=counted,
        server_tokens=server,
        finish_reason=answer.finish_reason,
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _chunk_weights(sample: Sample, count_tokens: TokenCount | None) -> list[float]:
    """Tokens of each chunk: by the running count, else the answer's tokens spread over its chunks."""
    answer = sample.answer
    if len(answer.counts) == len(answer.times):
        return list(map(float, answer.counts))
    total = answer.usage.completion_tokens if answer.usage else None
    if total is None and count_tokens is not None:
        total = count_tokens("".join(answer.text))
    return [(total or len(answer.times)) / len(answer.times)] * len(answer.times)


def _tokens_by_slice(run: LevelRun, count_tokens: TokenCount | None) -> list[float]:
    """Output tokens that arrived in each part of the window, those of warm-up's and later requests included; tokens of
    answers that failed later are not."""
    slices = [0.0] * SLICES
    width = (run.end - run.start) / SLICES
    for sample in run.samples:
        if sample.error is None and sample.answer.times and width > 0:
            weights = _chunk_weights(sample, count_tokens)
            for time, tokens in zip(sample.answer.times, weights, strict=True):
                if run.start <= time < run.end:
                    slices[min(int((time - run.start) / width), SLICES - 1)] += tokens
    return slices


def _running(run: LevelRun) -> list[int]:
    width = (run.end - run.start) / SLICES
    ends = [run.start + width * (number + 1) for number in range(SLICES)]
    return [sum(each.due <= end and not 0 < each.ended <= end for each in run.samples) for end in ends]


def _summary(
    run: LevelRun,
    records: Sequence[RequestRecord],
    by_slice: Sequence[float],
    slo: Sequence[Objective],
    tokenized: bool,
    seed: int,
) -> LevelSummary:
    good = [each for each in records if each.error is None]
    seconds = max(run.end - run.start, 1e-9)
    width = seconds / SLICES
    prompts = [each.prompt_tokens for each in good if each.prompt_tokens is not None]
    cached = [each.cached_tokens for each in good if each.cached_tokens is not None]
    rate = mean_interval([tokens / width for tokens in by_slice], seed=seed)
    ended = [each for each in run.samples if run.start <= each.ended <= run.end]
    met = sum(all(meets_alone(each, objective) for objective in slo) for each in records)
    return LevelSummary(
        requests=len(records),
        succeeded=len(good),
        errors=dict(sorted(Counter(each.error for each in records if each.error is not None).items())),
        seconds=seconds,
        output_tokens_per_s=rate if good else None,
        requests_per_s=sum(each.error is None for each in ended) / seconds,
        prompt_tokens_per_s=sum(prompts) / seconds if prompts else None,
        cached_share=sum(cached) / sum(prompts) if cached and sum(prompts) else None,
        latency=_latency(good, seed),
        goodput=met / max(len(records), 1) * len(ended) / seconds if slo else None,
        meets_slo=meets_slo(records, slo) if slo else None,
        short_answers=sum(each.output_tokens < each.asked_tokens for each in good),
        tokens=_token_check(good, tokenized),
        overhead=_overhead(run, records),
    )


def _latency(good: Sequence[RequestRecord], seed: int) -> dict[str, Distribution]:
    groups: dict[str, list[Sequence[float]]] = {
        "ttft": [(each.ttft,) for each in good if each.ttft is not None],
        "tpot": [(tpot,) for each in good if (tpot := each.tpot) is not None],
        "itl": [each.gaps for each in good],
        "e2e": [(each.e2e,) for each in good if each.e2e is not None],
    }
    found = {name: distribution(values, seed=seed) for name, values in groups.items()}
    return {name: each for name, each in found.items() if each is not None}


def _token_check(good: Sequence[RequestRecord], tokenized: bool) -> TokenCheck:
    server = [each.server_tokens for each in good if each.server_tokens is not None]
    client = [each.counted_tokens for each in good if each.counted_tokens is not None]
    differ = sum(
        each.server_tokens is not None and each.counted_tokens is not None and each.server_tokens != each.counted_tokens
        for each in good
    )
    chunks = sum(len(each.gaps) + 1 for each in good)
    tokens = sum(each.output_tokens for each in good)
    by: CountedBy = "usage at the end" if server else "chunks"
    if tokenized:
        by = "tokenizer"
    elif client:
        by = "usage per chunk"
    return TokenCheck(
        counted_by=by,
        server=sum(server) if server else None,
        client=sum(client) if client else None,
        requests_that_differ=differ,
        tokens_per_chunk=tokens / chunks if chunks else 0.0,
    )


def _overhead(run: LevelRun, records: Sequence[RequestRecord]) -> Overhead:
    lags = np.asarray(run.lags) if len(run.lags) else np.zeros(1)
    return Overhead(
        cpu_share=run.cpu_seconds / run.wall_seconds if run.wall_seconds else 0.0,
        per_read=run.read_seconds / run.reads if run.reads else 0.0,
        slowest_read=run.slowest_read,
        lag_p50=nearest_rank(lags, 0.5),
        lag_p99=nearest_rank(lags, 0.99),
        lag_max=float(lags.max()),
        late_max=max((each.late for each in records), default=0.0),
    )
