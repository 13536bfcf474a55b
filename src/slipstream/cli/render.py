"""How results look in a terminal and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from slipstream.config.decision import Decision
from slipstream.engine.outputs import CompletionOutput, CompletionStats, RequestOutput
from slipstream.hw.memory import process_memory
from slipstream.sampling.logprobs import TokenLogprob


def speed_line(stats: CompletionStats, *, context: int | None = None) -> str:
    """TTFT, TPOT and tokens/s of one answer on one line, what was not measured left out; at the end peak memory or,
    in a conversation, how much of the `context` is used."""
    parts = [f"{stats.num_prompt_tokens} + {stats.num_output_tokens} tokens"]
    if stats.ttft is not None:
        parts.append(f"TTFT {stats.ttft * 1000:.0f} ms")
    if stats.tpot is not None and stats.tpot > 0:
        parts += [f"TPOT {stats.tpot * 1000:.1f} ms", f"{1 / stats.tpot:.1f} tokens/s"]
    if stats.num_cached_tokens:
        parts.append(f"{stats.num_cached_tokens} cached")
    if stats.num_draft_tokens:
        saved = "" if stats.time_saved is None else f", {max(0.0, stats.time_saved):.2f} s saved"
        parts.append(f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted{saved}")
    if context is None:
        parts.append(f"peak memory {process_memory().peak / 2**20:.0f} MiB")
    else:
        parts.append(f"context {100 * (stats.num_prompt_tokens + stats.num_output_tokens) / context:.0f} %")
    return " | ".join(parts)


def overruled(decisions: Iterable[Decision]) -> list[str]:
    """One line for every setting that was asked for and is not in force as asked."""
    return [f"note: {decision}" for decision in decisions if decision.overruled]


def completion_json(completion: CompletionOutput) -> dict[str, Any]:
    stats = completion.stats
    result: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.error is not None:
        result["error"] = completion.error
    if completion.logprobs is not None:
        result["logprobs"] = [logprob_json(entry) for entry in completion.logprobs]
    if stats is not None:
        result["usage"] = {
            "prompt_tokens": stats.num_prompt_tokens,
            "completion_tokens": stats.num_output_tokens,
            "cached_tokens": stats.num_cached_tokens,
        }
        result["timings"] = {
            "queue_s": stats.queue_time,
            "ttft_s": stats.ttft,
            "tpot_s": stats.tpot,
            "e2e_s": stats.e2e,
            "preemptions": stats.num_preemptions,
            "draft_tokens": stats.num_draft_tokens,
            "accepted_tokens": stats.num_accepted_tokens,
            "mean_accepted_length": stats.mean_accepted_length,
            "time_saved_s": stats.time_saved,
        }
    return result


def output_json(output: RequestOutput) -> dict[str, Any]:
    result: dict[str, Any] = {"outputs": [completion_json(each) for each in output.outputs]}
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [None if e is None else logprob_json(e) for e in output.prompt_logprobs]
    return result


def logprob_json(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "logprob": entry.logprob,
        "rank": entry.rank,
        "top": [{"token_id": token, "logprob": value} for token, value in entry.top],
    }


def note(text: str) -> None:
    """A line for people, on stderr, so that stdout stays what the caller asked for."""
    print(text, file=sys.stderr, flush=True)
