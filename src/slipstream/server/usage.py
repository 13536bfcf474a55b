"""Token counts and times of a job, from its deltas."""

from __future__ import annotations

from typing import Any

from slipstream.engine.outputs import CompletionStats, OutputDelta


class Account:
    """Counts what a job's deltas say. A prompt counts once, however many completions it has."""

    def __init__(self, prompt_tokens: int, n: int) -> None:
        self.prompt_tokens = prompt_tokens
        self._n = n
        self._stats: dict[int, CompletionStats] = {}  # by choice
        self.completion_tokens = 0

    def add(self, delta: OutputDelta) -> None:
        self.completion_tokens += len(delta.token_ids)
        if delta.stats is not None:
            self._stats[delta.index] = delta.stats

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had, of each prompt's first completion: the others share its blocks."""
        return sum(stats.num_cached_tokens for choice, stats in self._stats.items() if choice % self._n == 0)

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def _mean_accepted_length(self) -> float | None:
        """Tokens per verified draft, the one sampled behind it included; None without drafts."""
        drafts = sum(each.num_drafts for each in self._stats.values())
        accepted = sum(each.num_accepted_tokens for each in self._stats.values())
        return round(1 + accepted / drafts, 3) if drafts else None

    def timings(self) -> dict[str, Any]:
        """Milliseconds, of the completions together: from the first that was scheduled to the last that ended."""
        stats = self._stats.values()
        queue = min((each.queue_time for each in stats if each.queue_time is not None), default=None)
        ttft = min((each.ttft for each in stats if each.ttft is not None), default=None)
        e2e = max((each.e2e for each in stats if each.e2e is not None), default=None)
        tpots = [each.tpot for each in stats if each.tpot is not None]
        saved = [each.time_saved for each in stats if each.time_saved is not None]
        return {
            "queue_ms": _ms(queue),
            "prefill_ms": _ms(None if ttft is None or queue is None else ttft - queue),
            "ttft_ms": _ms(ttft),
            "decode_ms": _ms(None if e2e is None or ttft is None else e2e - ttft),
            "tpot_ms": _ms(sum(tpots) / len(tpots) if tpots else None),
            "e2e_ms": _ms(e2e),
            "cached_tokens": self.cached_tokens,
            "preemptions": sum(each.num_preemptions for each in stats),
            "draft_tokens": sum(each.num_draft_tokens for each in stats),
            "accepted_tokens": sum(each.num_accepted_tokens for each in stats),
            "mean_accepted_length": self._mean_accepted_length(),
            "time_saved_ms": _ms(sum(saved) if saved else None),
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
