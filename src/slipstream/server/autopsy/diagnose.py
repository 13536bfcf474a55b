"""The one cause that dominated a request's time, in words and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slipstream.server.autopsy.split import Part, Split, split
from slipstream.server.autopsy.timeline import Timeline

CauseKind = Part | Literal["refused", "none"]


@dataclass(frozen=True, slots=True)
class Cause:
    """`share` is of the whole time, 0 to 1. `advice` is empty where nothing is wrong."""

    kind: CauseKind
    seconds: float
    share: float
    text: str
    advice: str = ""


def diagnose(timeline: Timeline) -> Cause:
    """The largest part of `split`; of equal ones the earlier in a request's life.

    "none" if nothing can be said: nothing was measured, or no time has passed.
    """
    if timeline.outcome == "refused":
        return Cause("refused", timeline.total, 1.0, f"It was refused after {seconds(timeline.total)}; nothing ran.")
    if not timeline.measured:
        return Cause("none", 0.0, 0.0, _unmeasured(timeline))
    parts = split(timeline)
    kind, most = max(parts.items(), key=lambda item: item[1])
    total = sum(value for _, value in parts.items())
    if total <= 0.0:
        return Cause("none", 0.0, 0.0, "No time has passed yet.")
    words, advice = _WORDS[kind](timeline, parts)
    share = most / total
    return Cause(kind, most, share, f"{words}: {seconds(most)} of {seconds(total)} ({share:.0%}).", advice)


def seconds(value: float) -> str:
    """2.25 -> "2.25 s", 0.0123 -> "12.3 ms"."""
    return f"{value:.3g} s" if 1 <= value < 1000 else f"{value:.0f} s" if value >= 1000 else f"{value * 1000:.3g} ms"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _unmeasured(timeline: Timeline) -> str:
    if timeline.outcome == "running":
        return f"It has been running for {seconds(timeline.total)}; where the time went is known when it ends."
    return f"It ended after {seconds(timeline.total)}, and the engine has no record of its steps."


def _queue(timeline: Timeline, _parts: Split) -> tuple[str, str]:
    ahead = f"{timeline.running_at_arrival} running and {timeline.waiting_at_arrival} waiting when it came"
    begin = "It never ran; it waited" if timeline.queue is None else "It waited"
    if timeline.running_at_arrival + timeline.waiting_at_arrival < timeline.max_running_at_arrival:
        return f"{begin} for steps of other requests although the batch had room, {ahead}", (
            "Prompts of others were computed first: lower max_num_batched_tokens, or spread the load over more servers."
        )
    return f"{begin} for a place in the batch, {ahead}", (
        "Raise max_num_seqs if memory allows, or spread the load over more servers."
    )


def _prompt(timeline: Timeline, parts: Split) -> tuple[str, str]:
    computed = timeline.prompt_tokens - timeline.cached_tokens
    rate = f", {computed / parts.prompt:.0f} tokens/s" if parts.prompt > 0 else ""
    cached = f"; {timeline.cached_tokens} more came from the prefix cache" if timeline.cached_tokens else ""
    words = f"Computing {count(computed, 'prompt token')}{rate}{cached}"
    if computed > timeline.cached_tokens:
        return words, "A shorter prompt helps, or one that begins with the same text as earlier ones (prefix cache)."
    return words, ""


def _batch(timeline: Timeline, _parts: Split) -> tuple[str, str]:
    steps = len(timeline.chunks) + timeline.decode.num_steps
    rows = sum(chunk.step_rows for chunk in timeline.chunks) + timeline.decode.mean_rows * timeline.decode.num_steps
    mates = f", {rows / steps - 1:.1f} on average in its {count(steps, 'step')}" if steps else ""
    return f"Other requests were computed in the meantime{mates}", (
        "Set tpot_objective to fewer seconds, so that prompts of others cost less at a time, or lower max_num_seqs."
    )


def _preemption(timeline: Timeline, _parts: Split) -> tuple[str, str]:
    again = (
        f" and {count(timeline.recomputed_tokens, 'token')} were computed again" if timeline.recomputed_tokens else ""
    )
    return f"KV blocks ran out: it was sent back {count(len(timeline.preemptions), 'time')}{again}", (
        "Give the KV cache more memory, or lower max_num_seqs."
    )


def _generation(timeline: Timeline, parts: Split) -> tuple[str, str]:
    later = timeline.output_tokens - timeline.completions
    pace = f", {seconds(parts.generation * timeline.completions / later)} per token" if later > 0 else ""
    return f"Generating {count(timeline.output_tokens, 'token')}{pace}", ""


def _server(timeline: Timeline, _parts: Split) -> tuple[str, str]:
    return (
        f"The server read the request for {seconds(timeline.intake)} and wrote the answer after the engine was done",
        ("It has more to do than it can; give it more processors, or spread the load over more servers."),
    )


def _stream(timeline: Timeline, _parts: Split) -> tuple[str, str]:
    return "The answer was ready and its reader was not", "The client or the network reads too slowly."


_WORDS: dict[Part, Callable[[Timeline, Split], tuple[str, str]]] = {
    "queue": _queue,
    "prompt": _prompt,
    "batch": _batch,
    "preemption": _preemption,
    "generation": _generation,
    "server": _server,
    "stream": _stream,
}
