"""A sweep as text."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.bench.knee import nothing_measured
from slipstream.bench.record import Level, ServeResult
from slipstream.bench.stats import Interval

HEADS = {"concurrency": "at once", "rate": "req/s", "trace": "speed-up"}
_COLUMNS = (
    "output tok/s",
    "req/s",
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "TPOT p99",
    "ITL p99",
    "e2e p50",
    "e2e p99",
    "good/s",
    "failed",
)


def table(levels: Sequence[Level]) -> list[str]:
    """One line per level; latencies in milliseconds, p99 with its 95 % interval; ~ marks one of too few samples."""
    rows = [(HEADS[levels[0].kind], *_COLUMNS), *(_row(level) for level in levels)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def level_notes(level: Level) -> list[str]:
    """What to know before believing a level's numbers."""
    summary = level.summary
    tokens, overhead = summary.tokens, summary.overhead
    if not summary.requests:
        return [f"0 requests in {summary.seconds:.1f} s: {nothing_measured(level)}"]
    server = "not given" if tokens.server is None else str(tokens.server)
    client = "not counted" if tokens.client is None else str(tokens.client)
    return [
        f"{summary.requests} requests in {summary.seconds:.1f} s; tokens by {tokens.counted_by}: "
        f"server {server}, client {client}, {tokens.requests_that_differ} requests differ; "
        f"{tokens.tokens_per_chunk:.2f} tokens per chunk; "
        f"{summary.short_answers} answers shorter than asked",
        f"client: {overhead.cpu_share:.0%} of a processor, {1e6 * overhead.per_read:.0f} us per read (at most "
        f"{milliseconds(overhead.slowest_read)} ms), event loop late by {milliseconds(overhead.lag_p50)} / "
        f"{milliseconds(overhead.lag_p99)} / {milliseconds(overhead.lag_max)} ms (p50 / p99 / max), requests sent late "
        f"by at most {milliseconds(overhead.late_max)} ms",
        *(f"failed: {count} x {kind}{_example(level, kind)}" for kind, count in summary.errors.items()),
    ]


def closing(result: ServeResult) -> list[str]:
    knee = result.knee
    lines = [f"note: {note}" for note in result.notes]
    if knee.knee is None:
        return [*lines, knee.why]
    unit = {"concurrency": "requests at once", "rate": "requests/s"}[result.levels[0].kind]
    return [*lines, f"knee: {knee.knee:g} {unit}; recommended limit: {knee.limit:g}. {knee.why} {knee.rule}"]


def milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def with_interval(interval: Interval | None, scale: float = 1.0) -> str:
    if interval is None:
        return "-"
    value, low, high = (scale * each for each in (interval.value, interval.low, interval.high))
    digits = 1 if value < 100 else 0
    return f"{'' if interval.firm else '~'}{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _row(level: Level) -> tuple[str, ...]:
    summary = level.summary

    def time(metric: str, quantile: str) -> str:
        found = summary.latency.get(metric)
        if found is None:
            return "-"
        interval = found.quantiles[quantile]
        return with_interval(interval, 1000) if quantile == "p99" else milliseconds(interval.value)

    met = {None: "", True: " met", False: " missed"}[summary.meets_slo]
    return (
        f"{level.value:g}",
        with_interval(summary.output_tokens_per_s),
        f"{summary.requests_per_s:.2f}",
        time("ttft", "p50"),
        time("ttft", "p99"),
        time("tpot", "p50"),
        time("tpot", "p99"),
        time("itl", "p99"),
        time("e2e", "p50"),
        time("e2e", "p99"),
        "-" if summary.goodput is None else f"{summary.goodput:.2f}{met}",
        str(sum(summary.errors.values())),
    )


def _example(level: Level, kind: str) -> str:
    first = next((each.message for each in level.records if each.error == kind), None)
    return f", the first: {first}" if first else ""
