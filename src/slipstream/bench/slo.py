"""Service level objectives: `ttft_p99=0.5,tpot_p99=50ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.errors import UsageError

METRICS = ("ttft", "tpot", "itl", "e2e")
_TERM = re.compile(r"([a-z0-9]+)_p([0-9]{1,2}(?:\.[0-9]{1,3})?)=([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms)?")
_FIX = "Write METRIC_pN=SECONDS, joined with commas, as in ttft_p99=0.5,tpot_p99=50ms; metrics: " + ", ".join(METRICS)


@dataclass(frozen=True, slots=True)
class Objective:
    """The `quantile` (0 to 1, exclusive) of `metric` is to be at most `limit` seconds."""

    metric: str
    quantile: float
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}_p{100 * self.quantile:g}={self.limit:g}s"


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Raises UsageError for a term that is not understood, a metric named twice and a limit or quantile of zero."""
    found: list[Objective] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip().lower())
        if match is None or match[1] not in METRICS:
            raise UsageError(f"{term.strip()!r} is not an objective.", where="--slo", fix=f"{_FIX}.")
        limit = float(match[3]) / (1000 if match[4] == "ms" else 1)
        objective = Objective(match[1], float(match[2]) / 100, limit)
        if not limit or not objective.quantile:
            raise UsageError(f"{term.strip()!r} can never be met, or says nothing.", where="--slo", fix=f"{_FIX}.")
        if any(each.metric == objective.metric for each in found):
            raise UsageError(f"{objective.metric} has two objectives.", where="--slo", fix="Give one for each metric.")
        found.append(objective)
    return tuple(found)
