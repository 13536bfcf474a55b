"""Places in the queue for requests that are still being prepared."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from slipstream.errors import InvalidParamsError


class HeldPlaces:
    """Counts requests, by id, that will be queued once their grammar is compiled. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[str, tuple[int, int]] = {}
        self.num_requests = 0  # completions
        self.num_tokens = 0  # of the prompts

    def others(self, request_id: str) -> tuple[int, int]:
        """Requests and prompt tokens that are held by all but one."""
        with self._lock:
            own = self._held.get(request_id, (0, 0))
            return self.num_requests - own[0], self.num_tokens - own[1]

    def hold(
        self, request_id: str, num_requests: int, num_tokens: int, check: Callable[[tuple[int, int]], None]
    ) -> None:
        """`check` gets what is held so far and raises if there is no room; nobody else takes a place meanwhile.

        Raises InvalidParamsError for an id that holds one already.
        """
        with self._lock:
            if request_id in self._held:
                raise InvalidParamsError("a request with this id is running.", where=f"request {request_id}")
            check((self.num_requests, self.num_tokens))
            self._held[request_id] = num_requests, num_tokens
            self._count(num_requests, num_tokens)

    def release(self, request_id: str) -> None:
        """It may hold none."""
        with self._lock:
            num_requests, num_tokens = self._held.pop(request_id, (0, 0))
            self._count(-num_requests, -num_tokens)

    def _count(self, num_requests: int, num_tokens: int) -> None:
        self.num_requests += num_requests
        self.num_tokens += num_tokens
