"""The usual step: all that runs decodes, nothing waits.

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
    """The rows that the scheduler's rule gives for a step in which all of `ranked` feed their newest tokens and drafts.

    None if it is not as simple as that; what has been reserved by then, the rule would have reserved as well.
    """
    if len(queue):
        return None
    size, left = kv.block_size, max_tokens
    rows = []
    for request in ranked:
        start, known, table, draft = request.computed, len(request.tokens), request.table, request.draft
        count = len(draft)
        left -= 1 + count
        if left < 0 or known - start != 1:
            return None
        if known + count > len(table.blocks) * size:
            if count and kv.num_free < len(ranked) + sum([len(each.draft) for each in ranked]):
                return None  # maybe there are none for drafts: others' own tokens come first
            if not kv.reserve(request, known + count):
                return None
        sampling = request.row_sampling(samples=True)
        tokens, wants = (request.tokens[start], *draft), request.wants_states
        probs = request.draft_probs if count else None
        rows.append(
            PlanRow(request.id, tokens, start, table.snapshot(), count, 1 + count, True, sampling, probs, wants)
        )
    queue.rates.observe(now, 0, 0, 0)
    return tuple(rows)
