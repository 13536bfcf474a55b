"""The bars of benchmarks/serving.py: medians over the rounds, with a point for each round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PANELS = (
    ("output tokens/s", ("output_tokens_per_s",), ("",), 1.0),
    ("time per output token, ms", ("tpot_p50", "tpot_p99"), ("p50", "p99"), 1e3),
    ("time to first token, s", ("ttft_p50", "ttft_p99"), ("p50", "p99"), 1.0),
)


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    servers = list(result["medians"])
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(13, 4.5), width_ratios=(2, 3, 3))
    for panel, (title, metrics, labels, scale) in zip(axes, PANELS, strict=True):
        width = 0.8 / len(servers)
        for index, server in enumerate(servers):
            at = [i + (index - (len(servers) - 1) / 2) * width for i in range(len(metrics))]
            values = [scale * result["medians"][server][metric] for metric in metrics]
            bars = panel.bar(at, values, width, label=f"{server} {result['versions'][server]}")
            panel.bar_label(bars, [f"{value:.3g}" for value in values], padding=2, fontsize=8)
            own = [turn for turn in result["turns"] if turn["server"] == server]
            for x, metric in zip(at, metrics, strict=True):
                panel.plot([x] * len(own), [scale * turn[metric] for turn in own], ".", color="black", markersize=4)
        panel.set_xticks(range(len(metrics)), labels)
        panel.set_title(title)
        panel.margins(y=0.12)
        panel.set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(servers), frameon=False)
    figure.suptitle(
        f"{result['model']}, {result['concurrency']} requests at once, {result['threads']} threads, "
        f"{result['rounds']} interleaved rounds of {result['seconds']:g} s"
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
