"""The requests under way and the last ones that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from slipstream.server.observe.record import RequestRecord


class RequestLog:
    """Keeps every open request and the last `keep` that ended. An id that comes again
    replaces the earlier request."""

    def __init__(self, keep: int = 256) -> None:
        self._keep = keep
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()
        self._num_ended = 0

    def add(self, record: RequestRecord) -> None:
        """Not kept if an open request has the id: the engine will refuse the second."""
        earlier = self._records.get(record.request_id)
        if earlier is None or earlier.end is not None:
            self._drop(record.request_id)
            self._records[record.request_id] = record

    def end(self, record: RequestRecord, now: float, outcome: str) -> None:
        """The record is complete from now on. Ended ones stay in the order in which they ended."""
        record.end, record.outcome = now, outcome
        if self._records.get(record.request_id) is not record:
            return
        self._records.move_to_end(record.request_id)
        self._num_ended += 1
        if self._num_ended > self._keep:
            self._drop(next(key for key, each in self._records.items() if each.end is not None))

    def delivered(self, request_id: str, received: float, now: float, wait: float) -> list[RequestRecord]:
        """The answer to one HTTP request, ID or ID-0, ID-1, ... in the engine, has reached its reader: its records."""
        records = []
        numbered = (f"{request_id}-{number}" for number in range(len(self._records)))
        for key in chain((request_id,), numbered):
            record = self._records.get(key)
            if record is not None and record.delivered is None:
                record.received, record.delivered, record.stream_wait = received, now, wait
                records.append(record)
            elif key != request_id:
                break
        return records

    def get(self, request_id: str) -> RequestRecord | None:
        return self._records.get(request_id)

    def recent(self) -> Iterator[RequestRecord]:
        """Latest first."""
        return reversed(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def _drop(self, request_id: str) -> None:
        old = self._records.pop(request_id, None)
        self._num_ended -= old is not None and old.end is not None
