"""How many drafted tokens each row of a step should verify."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def choose_lengths(
    chances: Sequence[Sequence[float]], step_time: Callable[[int], float], *, margin: float = 0.0
) -> list[int]:
    """The draft lengths that maximise expected tokens per second of one step.

    chances: per row, for each position of its draft the probability that it and all before it are right (so the numbers
    never rise along a row). step_time(n): seconds of the step with n draft tokens in all, n = 0 .. their number; it
    need not be smooth. A step with drafts must promise more than (1 + margin) times the rate of the step without.

    Expected tokens are one per row plus the sum of the verified chances. For any total n the best n tokens are the n
    likeliest, which respects the order within rows; so one pass over n in that order finds the optimum.
    """
    rows = len(chances)
    lengths, best = [0] * rows, [0] * rows
    if not rows:
        return best
    best_rate = rows / step_time(0) * (1.0 + margin)
    expected = float(rows)
    heap = [(-row[0], index) for index, row in enumerate(chances) if row]
    heapq.heapify(heap)
    count = 0
    while heap:
        negative, index = heap[0]
        expected -= negative
        count += 1
        lengths[index] += 1
        row = chances[index]
        if lengths[index] < len(row):
            heapq.heapreplace(heap, (-row[lengths[index]], index))
        else:
            heapq.heappop(heap)
        rate = expected / step_time(count)
        if rate > best_rate:
            best_rate, best = rate, lengths.copy()
    return best
