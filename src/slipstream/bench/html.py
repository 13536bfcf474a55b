"""A sweep as one self-contained HTML page: no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from slipstream.bench.record import Level, ServeResult
from slipstream.bench.stats import Distribution, Interval
from slipstream.bench.svg import Chart, Point, Series, draw
from slipstream.bench.table import HEADS, closing, level_notes, milliseconds, with_interval

_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "gap between chunks",
    "e2e": "whole request",
}
_X = {"concurrency": "requests at once", "rate": "requests per second", "trace": "times the trace's speed"}
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#5b6570;--line:#d8dee4;--c0:#0b62c4;--c1:#b4540a;
--c2:#1a7f4b;--c3:#8a3ffc;--c4:#c2185b;--c5:#5b6570}
@media(prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#e6e9ec;--soft:#9aa5b1;--line:#333b44;--c0:#6cb0ff;--c1:#f0a35e;
--c2:#56d39b;--c3:#c09cff;--c4:#ff7aa8;--c5:#9aa5b1}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:auto;max-width:1180px;padding:24px}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p,li{max-width:75ch}.soft{color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:20px}
svg{width:100%;height:auto;border:1px solid var(--line);border-radius:6px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{border-bottom:1px solid var(--line);padding:4px 10px;text-align:right}
th:first-child,td:first-child{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
.big{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}.big div{border:1px solid var(--line);border-radius:6px;
padding:8px 16px}.big b{display:block;font-size:1.4rem}
text{fill:var(--fg);font:12px system-ui,sans-serif}.title{font-weight:600;font-size:13px}.tick,.label{fill:var(--soft)}
.tick{font-size:11px}.grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--soft);stroke-dasharray:4 3}
.limit{stroke:var(--c4);stroke-dasharray:6 4}.line{fill:none;stroke-width:2}.band{opacity:.18;stroke:none}
""" + "".join(f".line.s{n}{{stroke:var(--c{n})}}.dot.s{n},.band.s{n}{{fill:var(--c{n})}}" for n in range(6))


def page(result: ServeResult) -> str:
    """The whole report. Everything that came from outside is escaped."""
    title = f"Load test of {result.model}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style><body><h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(result.url)}, /v1/{escape(result.api)}, {escape(result.date)}, '
        f"Slipstream {escape(result.version)}</p>",
        _headline(result),
        '<div class="charts">',
        *(draw(chart) for chart in charts(result)),
        "</div><h2>Levels</h2>",
        _levels(result),
        "<h2>How far to trust this</h2><ul>",
        *(
            f"<li>{HEADS[level.kind]} {level.value:g}: {escape('; '.join(level_notes(level)))}.</li>"
            for level in result.levels
        ),
        *(f"<li>{escape(note)}.</li>" for note in result.notes),
        "<li>Percentiles are nearest-rank; intervals are 95 %, from a bootstrap over whole requests (throughput: over "
        "equal parts of the window); ~ marks a percentile with too few samples beyond it.</li>",
        "<li>Warm-up is not measured, and load goes on until the last measured request has been answered.</li></ul>",
        "<h2>What was run</h2>",
        _facts({**result.workload, **result.settings, **{f"client {k}": v for k, v in result.client.items()}}),
        "</body></html>",
    ]
    return "".join(parts)


def charts(result: ServeResult) -> list[Chart]:
    levels = result.levels
    if not levels:
        return []
    x_label, kind = _X[levels[0].kind], levels[0].kind
    log = kind == "concurrency"
    marks = [] if result.knee.limit is None else [(result.knee.limit, "limit")]
    marks = [mark for mark in marks if levels[0].value <= mark[0] <= levels[-1].value]
    rates = [(level, level.summary.output_tokens_per_s) for level in levels]
    points = tuple(Point(level.value, rate.value, rate.low, rate.high) for level, rate in rates if rate is not None)
    found = [Chart("Output tokens per second", x_label, "tokens/s", (Series("all", points),), log, tuple(marks))]
    for metric, name in _NAMES.items():
        series = tuple(_quantile(levels, metric, quantile) for quantile in ("p50", "p90", "p99"))
        limit = next((_limit(text) for text in result.slo if text.startswith(f"{metric}_")), None)
        title = f"{metric.upper() if metric != 'e2e' else 'End to end'}: {name}"
        found.append(Chart(title, x_label, "ms", series, log, tuple(marks), limit))
    if result.slo:
        good = tuple(Point(level.value, level.summary.goodput or 0.0) for level in levels)
        answered = tuple(Point(level.value, level.summary.requests_per_s) for level in levels)
        title = "Requests per second within the objectives"
        found.append(Chart(title, x_label, "requests/s", (Series("good", good), Series("answered", answered)), log))
    last = levels[-1]
    width = last.summary.seconds / max(len(last.tokens_by_slice), 1)
    heights = [tokens / width for tokens in last.tokens_by_slice] if width else []
    rate = tuple(Point(number * width, height) for number, height in enumerate([*heights, *heights[-1:]]))
    title = f"Output tokens per second within the last level ({last.value:g})"
    found.append(Chart(title, "seconds", "tokens/s", (Series("tokens", rate, steps=True),)))
    return found


def _quantile(levels: Sequence[Level], metric: str, quantile: str) -> Series:
    points = []
    for level in levels:
        found: Distribution | None = level.summary.latency.get(metric)
        if found is not None:
            each = found.quantiles[quantile]
            points.append(Point(level.value, 1000 * each.value, 1000 * each.low, 1000 * each.high))
    return Series(quantile, tuple(points))


def _limit(objective: str) -> float:
    return 1000 * float(objective.partition("=")[2].removesuffix("s"))


def _headline(result: ServeResult) -> str:
    rates = [(each.summary.output_tokens_per_s, each) for each in result.levels]
    best = max(
        ((rate.value, level) for rate, level in rates if rate is not None), default=None, key=lambda pair: pair[0]
    )
    boxes = []
    if best is not None:
        boxes.append((f"{best[0]:.0f}", f"output tokens/s at the most, with {best[1].value:g} {_X[best[1].kind]}"))
    if result.knee.knee is not None:
        boxes.append((f"{result.knee.knee:g}", "knee"))
        boxes.append((f"{result.knee.limit:g}", "recommended limit"))
    failed = sum(sum(level.summary.errors.values()) for level in result.levels)
    boxes.append((str(failed), f"of {sum(level.summary.requests for level in result.levels)} requests failed"))
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(text)}</div>" for value, text in boxes)
    return f'<div class="big">{cells}</div><p>{escape(closing(result)[-1])}</p>'


def _levels(result: ServeResult) -> str:
    heads = [
        "level",
        "output tokens/s",
        "requests/s",
        *(f"{m} {q}" for m in _NAMES for q in ("p50", "p90", "p95", "p99")),
    ]
    heads += ["goodput", "failed"]
    rows = "".join(_level_row(level) for level in result.levels)
    cells = "".join(f"<th>{escape(head)}</th>" for head in heads)
    return (
        f'<p class="soft">Latencies in milliseconds.</p><div class="scroll"><table><tr>{cells}</tr>{rows}</table></div>'
    )


def _level_row(level: Level) -> str:
    summary = level.summary
    cells = [f"{HEADS[level.kind]} {level.value:g}", with_interval(summary.output_tokens_per_s)]
    cells.append(f"{summary.requests_per_s:.2f}")
    for metric in _NAMES:
        found = summary.latency.get(metric)
        for quantile in ("p50", "p90", "p95", "p99"):
            interval: Interval | None = None if found is None else found.quantiles[quantile]
            cells.append(with_interval(interval, 1000) if quantile == "p99" else _plain(interval))
    cells.append("-" if summary.goodput is None else f"{summary.goodput:.2f}")
    cells.append(str(sum(summary.errors.values())))
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _plain(interval: Interval | None) -> str:
    return "-" if interval is None else milliseconds(interval.value)


def _facts(facts: dict[str, str]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()) + "</dl>"
    )
