"""What one API key may have at once and per minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.server.errors import RateLimitError

BURST_SECONDS = 60.0  # of the rate that may come at once


@dataclass(slots=True)
class _Account:
    open: int
    tokens: float  # requests that may come now
    updated: float  # seconds


class KeyLimits:
    """Bounds open requests, and requests per minute by a token bucket: a minute's worth may come at once, then they
    come in at the rate."""

    def __init__(
        self, clock: Callable[[], float], *, concurrency: int | None = None, per_minute: float | None = None
    ) -> None:
        self._clock = clock
        self._concurrency = concurrency
        self._per_second = None if per_minute is None else per_minute / 60.0
        self._accounts: dict[str, _Account] = {}

    def enter(self, name: str) -> None:
        """Count a request in. Raises RateLimitError, and then counts nothing."""
        now = self._clock()
        burst = max(1.0, (self._per_second or 0.0) * BURST_SECONDS)
        account = self._accounts.setdefault(name, _Account(0, burst, now))
        if self._concurrency is not None and account.open >= self._concurrency:
            raise RateLimitError(
                f"the API key {name} has {account.open} requests open, and may have {self._concurrency}.",
                retry_after=1.0,
                fix="Wait for one to end.",
            )
        if self._per_second is not None:
            account.tokens = min(burst, account.tokens + (now - account.updated) * self._per_second)
            account.updated = now
            if account.tokens < 1.0:
                raise RateLimitError(
                    f"the API key {name} has made more than {self._per_second * 60:g} requests per minute.",
                    retry_after=(1.0 - account.tokens) / self._per_second,
                )
            account.tokens -= 1.0
        account.open += 1

    def leave(self, name: str) -> None:
        self._accounts[name].open -= 1
