"""The time of a request cut into parts that add up to the whole, one per thing that can be at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from slipstream.engine.timeline import ChunkTiming, DecodeTiming
from slipstream.server.autopsy.timeline import Timeline

Part = Literal["queue", "prompt", "batch", "preemption", "generation", "server", "stream"]
EPSILON = 1e-6  # the step that samples the first token ends with it


@dataclass(frozen=True, slots=True)
class Split:
    """Seconds; the sum of the parts is `Timeline.intake + Timeline.total`."""

    queue: float = 0.0  # before the first step
    prompt: float = 0.0  # its own prompt
    generation: float = 0.0  # its own answer
    batch: float = 0.0  # other requests' work while it ran
    preemption: float = 0.0  # sent back to the queue, and computed again
    server: float = 0.0  # reading the request before, and writing the answer after, the engine's work
    stream: float = 0.0  # the engine was done and the answer waited for its reader

    def items(self) -> tuple[tuple[Part, float], ...]:
        """In the order in which a request goes through them."""
        return (
            ("queue", self.queue),
            ("prompt", self.prompt),
            ("batch", self.batch),
            ("preemption", self.preemption),
            ("generation", self.generation),
            ("server", self.server),
            ("stream", self.stream),
        )


def split(timeline: Timeline) -> Split:
    """Cut at the first step, the first and the last token; then take out of each span what others caused.

    A step that computes a prompt is shared out by tokens. Steps that generate are the request's own, but for what those
    that also computed other requests' prompts took beyond the usual. Time between two chunks is others' time.
    """
    total = max(timeline.total, 0.0)
    intake = max(timeline.intake, 0.0)
    if timeline.queue is None:
        return Split(queue=total, server=intake)
    start = _within(timeline.queue, 0.0, total)
    first = total if timeline.first_token is None else _within(timeline.first_token, start, total)
    last = total if timeline.last_token is None else _within(timeline.last_token, first, total)
    before = [chunk for chunk in timeline.chunks if chunk.start < first - EPSILON]
    after = [chunk for chunk in timeline.chunks if chunk.start >= first - EPSILON]
    lost = [(each.at, last if each.waited is None else each.at + each.waited) for each in timeline.preemptions]

    prompt, mates, again = first - start, 0.0, 0.0
    prompt, taken = _take(prompt, _overlap(lost, start, first) + _again(before))
    again += taken
    prompt, taken = _take(prompt, _others(before) + _gaps(before, lost))
    mates += taken
    answer = last - first
    answer, taken = _take(answer, _overlap(lost, first, last) + _again(after))
    again += taken
    answer, taken = _take(answer, _others(after) + prompts_of_others(timeline.decode))
    mates += taken
    writing, reader = _take(total - last, timeline.stream_wait)
    return Split(start, prompt, answer, mates, again, intake + writing, reader)


def prompts_of_others(decode: DecodeTiming) -> float:
    """What other requests' prompts added to the steps that generated, in seconds.

    If every step computed some, nobody knows what one takes without; then a step is shared out by its requests.
    """
    if not decode.shared_steps:
        return 0.0
    clean = decode.num_steps - decode.shared_steps
    if not clean:
        return decode.shared_seconds * (1 - 1 / max(decode.mean_rows, 1.0))
    usual = (decode.seconds - decode.shared_seconds) / clean
    return max(decode.shared_seconds - decode.shared_steps * usual, 0.0)


def _take(span: float, amount: float) -> tuple[float, float]:
    """(What is left of the span, what was taken); never more than there is."""
    taken = min(max(amount, 0.0), span)
    return span - taken, taken


def _again(chunks: Sequence[ChunkTiming]) -> float:
    return sum(each.seconds * _share(each) for each in chunks if each.recomputed)


def _others(chunks: Sequence[ChunkTiming]) -> float:
    return sum(each.seconds * (1 - _share(each)) for each in chunks)


def _share(chunk: ChunkTiming) -> float:
    return chunk.num_tokens / max(chunk.step_tokens, chunk.num_tokens, 1)


def _gaps(chunks: Sequence[ChunkTiming], lost: Sequence[tuple[float, float]]) -> float:
    pairs = ((one.start + one.seconds, two.start) for one, two in pairwise(chunks))
    return sum(max(end - start, 0.0) - _overlap(lost, start, end) for start, end in pairs)


def _overlap(spans: Sequence[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(min(span_end, end) - max(span_start, start), 0.0) for span_start, span_end in spans)


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
