"""Counts that go on although the process that does the counting begins anew."""

from __future__ import annotations

from dataclasses import replace

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
)
_GAUGES = ("num_running", "num_waiting", "num_queued_tokens", "kv_blocks_used", "kv_blocks_cached", "max_num_seqs")


def add_totals(before: EngineStats, now: EngineStats) -> EngineStats:
    """`now`, with the totals of `before` added."""
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in _TOTALS})


def without_gauges(stats: EngineStats) -> EngineStats:
    """What is left when the process is gone."""
    return replace(stats, **dict.fromkeys(_GAUGES, 0))
