"""The requests that run, and their order by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slipstream.engine.request import Request


class RunningSet:
    """In the order in which they started; sorted by rank anew only when one has come or gone.

    `rank` may change for a request only while it does not run.
    """

    def __init__(self, rank: Callable[[Request], tuple[float, ...]]) -> None:
        self._rank = rank
        self._requests: dict[Request, None] = {}
        self._ranked: list[Request] | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request] = None
        self._ranked = None

    def discard(self, request: Request) -> None:
        """It may not be there."""
        if self._requests.pop(request, request) is None:
            self._ranked = None

    def by_rank(self) -> list[Request]:
        """A list that never changes."""
        if self._ranked is None:
            self._ranked = sorted(self._requests, key=self._rank)
        return self._ranked
