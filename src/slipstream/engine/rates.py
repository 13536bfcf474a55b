"""How fast the queue moves, measured while there is one."""

from __future__ import annotations

_HALF_LIFE = 30.0  # seconds of queueing after which a measurement counts half
_LONGEST = 3600.0  # seconds; nobody is told to wait longer


class QueueRates:
    """Requests and prompt tokens that leave the queue per second. Times without a queue do not count."""

    def __init__(self) -> None:
        self._seconds = self._requests = self._tokens = 0.0
        self._last: float | None = None  # when a queue was last seen

    def observe(self, now: float, started: int, started_tokens: int, waiting: int) -> None:
        """At every plan: what it started of the queue, and what waits on."""
        if self._last is not None:
            elapsed = max(0.0, now - self._last)
            kept = 0.5 ** (elapsed / _HALF_LIFE)
            self._seconds = self._seconds * kept + elapsed
            self._requests = self._requests * kept + started
            self._tokens = self._tokens * kept + started_tokens
        self._last = now if waiting else None

    def seconds_for(self, requests: int, tokens: int = 0) -> float | None:
        """Until so many have left the queue; None while nothing has been measured."""
        if self._seconds == 0.0:
            return None
        # Before the first start the time that has passed without one is the best there is.
        per_request = self._seconds / max(self._requests, 1.0)
        per_token = self._seconds / self._tokens if self._tokens else 0.0
        return min(_LONGEST, max(requests * per_request, tokens * per_token))
