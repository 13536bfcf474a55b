"""How many drafted tokens each row of a step should verify."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from slipstream.spec.step_tables import StepTable


def choose_lengths(
    next_chance: Sequence[Callable[[int], float]],
    most: Sequence[int],
    table: StepTable,
    rows: int,
    *,
    margin: float = 0.0,
) -> list[int]:
    """The draft lengths that maximise expected tokens per second of one step.

    next_chance: per drafted row, a function of n: the probability that its token n is right if those before it are.
    most: the rows' numbers of tokens. rows: all rows of the step, those without a draft too. table: seconds of the
    step by the number of its drafted tokens; at least as many as `most` in all. A step with drafts must
    promise more than (1 + margin) times the rate of the step without.

    Expected tokens are one per row plus, for every verified token, the chance that it and all before it are right. For
    any total the best tokens are the likeliest, which respects the order within rows; so one pass in that order finds
    the optimum. It ends where no number of further tokens could raise the best rate: each brings at most the next
    one's chance and costs at least `table.least` on average. So chances are asked for only as far as they matter.
    """
    seconds, least = table.seconds, table.least
    lengths, best = [0] * len(most), [0] * len(most)
    best_rate = rows / seconds[0] * (1.0 + margin)
    expected = float(rows)
    heap = [(-next_chance[index](0), index) for index, limit in enumerate(most) if limit]
    heapq.heapify(heap)
    count = 0
    while heap:
        negative, index = heap[0]
        if -negative <= best_rate * least[count] and expected <= best_rate * seconds[count]:
            break
        expected -= negative
        count += 1
        length = lengths[index] = lengths[index] + 1
        if length < most[index]:
            heapq.heapreplace(heap, (negative * next_chance[index](length), index))
        else:
            heapq.heappop(heap)
        rate = expected / seconds[count]
        if rate > best_rate:
            best_rate, best = rate, lengths.copy()
    return best
