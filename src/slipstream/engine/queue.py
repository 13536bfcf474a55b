"""Requests that wait to run, in the order of a policy and, among equals, of what their tenants have had."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from slipstream.engine.fairness import PROMPT_WEIGHT, Tenant, TenantShares
from slipstream.engine.places import HeldPlaces
from slipstream.engine.rates import QueueRates
from slipstream.engine.request import Request, RequestStatus
from slipstream.errors import OverloadedError

Rank = tuple[float, ...]
Key = tuple[Rank, bool, int]
Lane = tuple[int, Tenant]


class QueueFullError(OverloadedError):
    """Come back later; carries the number of waiting requests and of their prompt tokens."""

    def __init__(
        self,
        num_waiting: int,
        num_tokens: int = 0,
        *,
        where: str | None = None,
        retry_after: float | None = None,
        setting: str = "max_queued",
    ) -> None:
        self.num_waiting = num_waiting
        self.num_tokens = num_tokens
        tokens = f" with {num_tokens} prompt tokens" if num_tokens else ""
        super().__init__(
            f"{num_waiting} requests{tokens} are waiting already.",
            where=where,
            fix=f"Retry later or raise {setting}.",
            retry_after=retry_after,
        )


class QueuePolicy(Protocol):
    def rank(self, request: Request) -> Rank:
        """Lower runs earlier and is preempted later. Constant for a request; ties go to the earlier one."""
        ...

    def level(self, request: Request) -> int:
        """Tenants share among requests of one level; between levels ranks decide. Constant for a request."""
        ...


class FirstComeFirstServed:
    def rank(self, request: Request) -> Rank:
        return ()

    def level(self, request: Request) -> int:
        return 0


class PriorityOrder:
    """Lower `priority` first, then earlier arrival.

    With ageing, one level of priority is worth `ageing_seconds` of waiting: a request takes the place of one of
    priority 0 that arrived priority * ageing_seconds later. Both orders are constant while a request waits, yet
    with ageing only requests that arrive within a bounded time can overtake a given one, so that none starves.
    """

    def __init__(self, ageing_seconds: float | None = 10.0) -> None:
        self._ageing_seconds = ageing_seconds

    def rank(self, request: Request) -> Rank:
        if self._ageing_seconds is None:
            return (request.priority, request.arrival)
        return (request.priority * self._ageing_seconds + request.arrival,)

    def level(self, request: Request) -> int:
        return request.priority


class WaitingQueue:
    """One sorted lane per level and tenant; a preempted request goes before those of equal rank that have not run yet.

    The next request is found by level: the first preempted one, or else the first of the tenant that has been served
    least; between the levels' candidates ranks decide. With one tenant that is plainly the order of ranks.

    At most `max_queued` new requests wait (None: no bound), and new ones with at most `max_queued_tokens` prompt
    tokens together, but a queue that is empty takes any request. Preempted ones are always taken back. Requests that
    hold a place count as waiting.
    """

    def __init__(
        self, policy: QueuePolicy, max_queued: int | None = None, max_queued_tokens: int | None = None
    ) -> None:
        self._policy = policy
        self._max_queued = max_queued
        self._max_queued_tokens = max_queued_tokens
        self.shares = TenantShares()
        self.rates = QueueRates()
        self.places = HeldPlaces()
        self.num_tokens = 0  # prompt tokens of all that wait; siblings share those of the first
        self._lanes: dict[Lane, list[tuple[Rank, bool, int, Request]]] = {}
        self._entry_of: dict[str, tuple[Lane, Key, int]] = {}

    def __len__(self) -> int:
        return len(self._entry_of)

    def __iter__(self) -> Iterator[Request]:
        """First the one that should run next. The queue must not change meanwhile."""
        if len(self._lanes) == 1:
            [lane] = self._lanes.values()
            return (entry[3] for entry in lane)
        return self._in_turns()

    def __contains__(self, request: Request) -> bool:
        return request.id in self._entry_of

    def require_room(self, request: Request, also: int = 0, *, places: bool = True) -> None:
        """Raise QueueFullError if the request and `also` siblings would exceed a bound.

        `places` false: those that are held do not count, so that only this queue's own thread changes the answer.
        """
        others = self.places.others(request.id) if places else (0, 0)
        self._require_room(request.id, 1 + also, _cost(request), others)

    def hold_place(self, request_id: str, num_requests: int, num_tokens: int) -> None:
        """Count a request that is not here yet, with its siblings, until `places.release`. From any thread.

        Raises QueueFullError, or InvalidParamsError for an id that holds a place already.
        """
        if self._max_queued is not None:
            num_requests = min(num_requests, self._max_queued)  # more are refused anyway, and not for want of room
        self.places.hold(
            request_id,
            num_requests,
            num_tokens,
            lambda others: self._require_room(request_id, num_requests, num_tokens, others),
        )

    def _require_room(self, request_id: str, num_requests: int, num_tokens: int, held: tuple[int, int]) -> None:
        waiting, tokens = len(self) + held[0], self.num_tokens + held[1]
        excess = 0 if self._max_queued is None else waiting + num_requests - self._max_queued
        excess_tokens = 0
        if self._max_queued_tokens is not None and waiting:
            excess_tokens = tokens + num_tokens - self._max_queued_tokens
        if excess > 0 or excess_tokens > 0:
            raise QueueFullError(
                waiting,
                tokens if excess <= 0 else 0,
                where=f"request {request_id}",
                retry_after=self.rates.seconds_for(max(0, excess), max(0, excess_tokens)),
                setting="max_queued" if excess > 0 else "max_queued_tokens",
            )

    def push(self, request: Request) -> None:
        fresh = request.status is not RequestStatus.PREEMPTED
        lane = self._policy.level(request), request.tenant
        key, cost = (self._policy.rank(request), fresh, request.order), _cost(request)
        insort(self._lanes.setdefault(lane, []), (*key, request), key=_without_request)
        self._entry_of[request.id] = lane, key, cost
        self.num_tokens += cost

    def remove(self, request: Request) -> None:
        lane, key, cost = self._entry_of.pop(request.id)
        entries = self._lanes[lane]
        del entries[bisect_left(entries, key, key=_without_request)]
        if not entries:
            del self._lanes[lane]
        self.num_tokens -= cost

    def _in_turns(self) -> Iterator[Request]:
        """Each request is charged to its tenant as it is given out, so that one plan serves several tenants."""
        places = dict.fromkeys(self._lanes, 0)
        served = {tenant: self.shares.served(tenant) for _, tenant in self._lanes}
        while places:
            candidates: dict[int, tuple[tuple[bool, float, Key], Lane]] = {}
            for lane, place in places.items():
                level, tenant = lane
                key = _without_request(self._lanes[lane][place])
                turn = (key[1], served[tenant] if key[1] else 0.0, key)
                if level not in candidates or turn < candidates[level][0]:
                    candidates[level] = turn, lane
            _, lane = min(candidates.values(), key=_rank_of_turn)
            request = self._lanes[lane][places[lane]][3]
            served[lane[1]] += PROMPT_WEIGHT * _cost(request)
            places[lane] += 1
            if places[lane] == len(self._lanes[lane]):
                del places[lane]
            yield request


def _cost(request: Request) -> int:
    return request.num_prompt_tokens if request.fork_of is None else 0


def _without_request(entry: tuple[Rank, bool, int, Request]) -> Key:
    return entry[:3]


def _rank_of_turn(candidate: tuple[tuple[bool, float, Key], Lane]) -> Key:
    return candidate[0][2]
