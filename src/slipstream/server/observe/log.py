"""The requests under way and the last ones that ended, of every tenant for itself."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain

from slipstream.server.observe.record import RequestRecord


class RequestLog:
    """Keeps every open request and the last `keep` that ended; when there are more, the tenant that has most of them
    loses its oldest. An id that comes again replaces the same tenant's earlier request, and nobody else's."""

    def __init__(self, keep: int = 256) -> None:
        self._keep = keep
        self._records: OrderedDict[tuple[str | None, str], RequestRecord] = OrderedDict()
        self._num_ended: Counter[str | None] = Counter()

    def add(self, record: RequestRecord) -> None:
        """Not kept if an open request has the id: the engine will refuse the second."""
        key = _key(record)
        earlier = self._records.get(key)
        if earlier is None or earlier.end is not None:
            self._drop(key)
            self._records[key] = record

    def end(self, record: RequestRecord, now: float, outcome: str) -> None:
        """The record is complete from now on. Ended ones stay in the order in which they ended."""
        record.end, record.outcome = now, outcome
        key = _key(record)
        if self._records.get(key) is not record:
            return
        self._records.move_to_end(key)
        self._num_ended[record.tenant] += 1
        if self._num_ended.total() > self._keep:
            most = max(self._num_ended.values())
            self._drop(
                next(
                    key
                    for key, each in self._records.items()
                    if each.end is not None and self._num_ended[each.tenant] == most
                )
            )

    def delivered(
        self, tenant: str | None, request_id: str, received: float, now: float, wait: float
    ) -> list[RequestRecord]:
        """The answer to one HTTP request, ID or ID-0, ID-1, ... in the engine, has reached its reader: its records."""
        records = []
        numbered = (f"{request_id}-{number}" for number in range(len(self._records)))
        for each in chain((request_id,), numbered):
            record = self._records.get((tenant, each))
            if record is not None and record.delivered is None:
                record.received, record.delivered, record.stream_wait = received, now, wait
                records.append(record)
            elif each != request_id:
                break
        return records

    def get(self, tenant: str | None, request_id: str) -> RequestRecord | None:
        return self._records.get((tenant, request_id))

    def recent(self, tenant: str | None) -> Iterator[RequestRecord]:
        """The tenant's, latest first."""
        return (record for record in reversed(self._records.values()) if record.tenant == tenant)

    def __len__(self) -> int:
        return len(self._records)

    def _drop(self, key: tuple[str | None, str]) -> None:
        old = self._records.pop(key, None)
        if old is not None and old.end is not None:
            self._num_ended[old.tenant] -= 1
            if not self._num_ended[old.tenant]:
                del self._num_ended[old.tenant]


def _key(record: RequestRecord) -> tuple[str | None, str]:
    return record.tenant, record.request_id
