"""Where a sweep bends, and what to run at."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.bench.record import Knee, Level

GAIN = 0.10  # of output tokens/s that a doubling of the load must still bring
BACKLOG = 0.05  # of the requests that arrived, by which open ones may grow within the window
FAILED = 0.01  # of a level's requests that may fail
HEADROOM = 0.20

CLOSED_RULE = (
    f"The knee is the last level up to which every doubling of the requests at once still brought {GAIN:.0%} more "
    "output tokens/s (smaller steps in proportion), and, with --slo, every objective was met, "
    f"with at most {FAILED:.0%} of the requests failed. The limit is the knee less {HEADROOM:.0%}, rounded down."
)
OPEN_RULE = (
    "The knee is the last rate up to which open requests did not pile up (by more than one and more than "
    f"{BACKLOG:.0%} of those that arrived, from the start of the window to its end) and, with --slo, every objective "
    f"was met, with at most {FAILED:.0%} of the requests failed. The limit is the knee less {HEADROOM:.0%}."
)


def find_knee(levels: Sequence[Level]) -> Knee:
    """For levels of one kind in rising order."""
    if not levels or levels[0].kind == "trace":
        return Knee(None, None, "", "A trace has one level, so there is no knee to find.")
    closed = levels[0].kind == "concurrency"
    rule = CLOSED_RULE if closed else OPEN_RULE
    knee: float | None = None
    why = "every level was still worth it; the knee lies at the last level or above"
    previous: Level | None = None
    for level in levels:
        reason = _failure(level) or (_flat(previous, level) if closed else _unserved(level))
        if reason is not None:
            why = f"at {level.value:g}: {reason}"
            break
        knee, previous = level.value, level
    if knee is None:
        return Knee(None, None, rule, f"Not even the first level will do: {why}.")
    limit = max(1, math.floor(knee * (1 - HEADROOM) + 1e-9)) if closed else round(knee * (1 - HEADROOM), 6)
    return Knee(knee, float(limit), rule, f"{why[0].upper()}{why[1:]}.")


def nothing_measured(level: Level) -> str | None:
    """Why a level has no answer to measure, or None if it has one."""
    summary = level.summary
    if summary.succeeded:
        return None
    if summary.requests:
        return "no request was answered"
    window = f"within the {summary.seconds:.3g} s that were measured"
    if level.kind == "concurrency":
        return f"no request began {window}, as earlier ones took longer; give more --seconds, or shorter requests"
    return f"no request was due {window}; give more --seconds, or a higher rate"


def _failure(level: Level) -> str | None:
    summary = level.summary
    nothing = nothing_measured(level)
    if nothing is not None:
        return nothing
    failed = sum(summary.errors.values())
    if failed > FAILED * summary.requests:
        return f"{failed} of {summary.requests} requests failed"
    if summary.meets_slo is False:
        return "the objectives were missed"
    return None


def _flat(previous: Level | None, level: Level) -> str | None:
    """Without a level below there is nothing to compare with."""
    if previous is None:
        return None
    before, after = previous.summary.output_tokens_per_s, level.summary.output_tokens_per_s
    assert before is not None
    assert after is not None
    needed = (1 + GAIN) ** math.log2(level.value / previous.value)
    if before.value > 0 and after.value < before.value * needed:
        gain = after.value / before.value - 1
        return f"output tokens/s changed by {gain:+.0%} only, from {before.value:.1f} to {after.value:.1f}"
    return None


def _unserved(level: Level) -> str | None:
    """Whether open requests piled up. Rates do not say it: a Poisson process does not give its rate exactly."""
    running = level.running_by_slice
    grown = running[-1] - running[0] if running else 0
    if grown > max(1.0, BACKLOG * level.summary.requests):
        return f"open requests piled up from {running[0]} to {running[-1]} within the window"
    return None
