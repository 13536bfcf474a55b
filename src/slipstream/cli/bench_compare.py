"""`slipstream bench compare`: is B better than A?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from slipstream.bench.compare import DRIFT, THRESHOLD, Comparison
from slipstream.bench.results import compare_results, read_results
from slipstream.bench.stats import CONFIDENCE
from slipstream.cli.parameters import Argument, Option
from slipstream.errors import UsageError


def compare(
    a: Annotated[Path, Argument(metavar="A", help="A result file, or a folder of them.")],
    b: Annotated[Path, Argument(metavar="B", help="What is compared with it.")],
    *,
    threshold: Annotated[float, Option(help="A smaller change than this share is within noise.")] = THRESHOLD,
    drift: Annotated[
        float, Option(help="What a machine may change by between two runs; counts for one run of each.")
    ] = DRIFT,
    json_: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say for every metric of two results whether B is better, worse or within noise of A.

    The ratio is B over A with a 95 % interval. Better or worse needs an interval that leaves out 1 and a change of at
    least --threshold. Two files know nothing of how the machine changes between runs, so the interval must leave out
    1 by more than --drift; folders of runs made in turn do know it.
    """
    if not 0 <= threshold < 1:
        raise UsageError("must be from 0 to 1.", where="--threshold")
    if not 0 <= drift < 10:
        raise UsageError("must be from 0 to below 10.", where="--drift")
    of_a, of_b = read_results(a), read_results(b)
    found, doubts = compare_results(of_a, of_b, threshold=threshold, drift=drift)
    if json_:
        print(msgspec.json.encode({"comparisons": found, "doubts": doubts}).decode())
        return
    print(f"A: {of_a[0].name} ({a})   B: {of_b[0].name} ({b})")
    for line in _table(found):
        print(line)
    print(
        f"Better or worse: the {CONFIDENCE:.0%} interval of B over A leaves out 1, and the change is at least "
        f"{threshold:.1%}."
    )
    if len(of_a) == 1:
        doubts.append(
            f"one run each: differences below {drift:.0%} are not told apart from drift between runs; give folders of "
            "runs made in turn"
        )
    for doubt in doubts:
        print(f"note: {doubt}")


def _table(found: list[Comparison]) -> list[str]:
    rows = [("", "metric", "A", "B", "B over A", "pairs", "verdict")]
    rows += [
        (
            each.level,
            each.metric,
            _number(each.metric, each.a),
            _number(each.metric, each.b),
            f"{each.ratio:.3f} [{each.low:.3f}, {each.high:.3f}]" if each.high else "-",
            str(each.pairs),
            each.verdict if each.high else f"{each.verdict} ({each.why})",
        )
        for each in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _number(metric: str, value: float) -> str:
    whole = metric == "seconds" or metric.endswith("/s")
    return f"{value:.2f}" if whole else f"{1000 * value:.2f} ms"
