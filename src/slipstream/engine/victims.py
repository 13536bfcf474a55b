"""Who gives way when KV blocks run out."""

from __future__ import annotations

from slipstream.engine.fairness import TenantShares
from slipstream.engine.queue import QueuePolicy
from slipstream.engine.request import Request
from slipstream.engine.running import RunningSet


def rank(policy: QueuePolicy, request: Request) -> tuple[float, ...]:
    """Total order of running requests, highest preempted first; constant but for one becoming protected, once."""
    if request.protected:
        return (0, request.order)
    return (1, *policy.rank(request), request.order)


def choose_victim(running: RunningSet, policy: QueuePolicy, shares: TenantShares) -> Request:
    """The running request to preempt: the queue's order backwards.

    Among requests of one level it is the last by rank of the tenant that has been served most, and between the levels'
    candidates ranks decide; with one tenant that is plainly the last by rank. Protected requests come only when there
    are no others, the youngest first, so that the oldest of them ends.
    """
    ranked = running.by_rank()
    if not shares.several:
        return ranked[-1]
    candidates: dict[int, tuple[float, int]] = {}  # by level: what its tenant was served, its place
    for place, request in enumerate(ranked):
        if not request.protected:
            level, turn = policy.level(request), (shares.served(request.tenant), place)
            candidates[level] = max(candidates.get(level, turn), turn)
    return ranked[max((place for _, place in candidates.values()), default=-1)]
