"""Counts that go on although the process that does the counting begins anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

from slipstream.engine.protocol import EngineStats

_TOTALS = (
    "num_steps",
    "num_preemptions",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_finished",
    "num_shed",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "step_time",
    "forward_time",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "accepted_per_position",
    "time_saved",
    "num_store_draft_tokens",
    "num_store_accepted_tokens",
)
_GAUGES = (
    "num_running",
    "num_waiting",
    "num_queued_tokens",
    "kv_blocks_used",
    "kv_blocks_cached",
    "max_num_seqs",
    "num_store_tokens",
)


def add_totals(before: EngineStats, now: EngineStats) -> EngineStats:
    """`now`, with the totals of `before` added."""
    return replace(now, **{name: _sum(getattr(before, name), getattr(now, name)) for name in _TOTALS})


def without_gauges(stats: EngineStats) -> EngineStats:
    """What is left when the process is gone."""
    zeros: dict[str, Any] = dict.fromkeys(_GAUGES, 0)
    return replace(stats, **zeros)


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(a + b for a, b in zip_longest(first, second, fillvalue=0))
    return first + second
