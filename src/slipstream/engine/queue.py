"""Requests that wait to run, in the order of a policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from slipstream.engine.request import Request, RequestStatus
from slipstream.errors import RequestError

Rank = tuple[float, ...]


class QueueFullError(RequestError):
    """Come back later; carries the number of waiting requests."""

    def __init__(self, num_waiting: int, *, where: str | None = None) -> None:
        self.num_waiting = num_waiting
        super().__init__(
            f"{num_waiting} requests are waiting already.", where=where, fix="Retry later or raise max_queued."
        )


class QueuePolicy(Protocol):
    def rank(self, request: Request) -> Rank:
        """Lower runs earlier and is preempted later. Constant for a request; ties go to the earlier one."""
        ...


class FirstComeFirstServed:
    def rank(self, request: Request) -> Rank:
        return ()


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


class WaitingQueue:
    """A sorted list; a preempted request goes before those of equal rank that have not run yet.

    At most `max_queued` new requests wait (None: no bound); preempted ones are always taken back.
    """

    def __init__(self, policy: QueuePolicy, max_queued: int | None = None) -> None:
        self._policy = policy
        self._max_queued = max_queued
        self._entries: list[tuple[Rank, bool, int, Request]] = []
        self._entry_of: dict[str, tuple[Rank, bool, int, Request]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """First the one that should run next. The queue must not change meanwhile."""
        return (entry[3] for entry in self._entries)

    def __contains__(self, request: Request) -> bool:
        return request.id in self._entry_of

    def require_room(self, request: Request, also: int = 0) -> None:
        """Raise QueueFullError if the request and `also` others would exceed the bound."""
        if self._max_queued is not None and len(self._entries) + 1 + also > self._max_queued:
            raise QueueFullError(len(self._entries), where=f"request {request.id}")

    def push(self, request: Request) -> None:
        fresh = request.status is not RequestStatus.PREEMPTED
        entry = (self._policy.rank(request), fresh, request.order, request)
        insort(self._entries, entry, key=_without_request)
        self._entry_of[request.id] = entry

    def remove(self, request: Request) -> None:
        entry = self._entry_of.pop(request.id)
        del self._entries[bisect_left(self._entries, entry[:3], key=_without_request)]


def _without_request(entry: tuple[Rank, bool, int, Request]) -> tuple[Rank, bool, int]:
    return entry[:3]
