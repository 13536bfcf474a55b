"""The usual step: all that runs decodes, nothing waits, nothing is drafted.

Between two steps the model sweeps the processor's caches, so that host code runs on cold ones: what counts is how
many functions and objects a step touches, not how often. Here it is one function.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.engine.plan import PlanRow
from slipstream.engine.queue import WaitingQueue
from slipstream.engine.request import Request
from slipstream.kv.manager import KVManager


def steady_rows(
    ranked: Sequence[Request], queue: WaitingQueue, kv: KVManager, max_tokens: int, now: float
) -> tuple[PlanRow, ...] | None:
    """The rows that the scheduler's rule gives for a step in which each of `ranked` feeds its newest token.

    None if it is not as simple as that; what has been reserved by then, the rule would have reserved as well.
    """
    if len(queue) or len(ranked) > max_tokens:
        return None
    size = kv.block_size
    rows = []
    for request in ranked:
        start, known, table = request.computed, len(request.tokens), request.table
        if request.draft or known - start != 1:
            return None
        if known > len(table.blocks) * size and not kv.reserve(request, known):
            return None
        sampling = request.row_sampling(samples=True)
        token, wants = (request.tokens[start],), request.wants_states
        rows.append(PlanRow(request.id, token, start, table.snapshot(), 0, 1, True, sampling, None, wants))
    queue.rates.observe(now, 0, 0, 0)
    return tuple(rows)
