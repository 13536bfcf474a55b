"""How the engine's process is watched and restarted."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Times in seconds. Raises ConfigError naming a field out of range.

    A process hangs when a whole `heartbeat_timeout` passes without a sign of life from it (the signs come from a
    thread of their own, so a long step is no hang), or when one step takes longer than `step_timeout` (None: no limit).
    The n-th restart in a row waits `backoff` * 2 ** (n - 1), at most `max_backoff`; a process that was
    ready for `stable_after` begins a new row.
    """

    restart: bool = True
    heartbeat_timeout: float = 10.0
    step_timeout: float | None = 600.0
    start_timeout: float = 120.0  # without a sign of life while the model is loaded
    backoff: float = 0.5
    max_backoff: float = 30.0
    stable_after: float = 60.0
    close_timeout: float = 10.0  # for the step under way when the engine is closed; then the process is killed
    warm_up: bool = True

    def __post_init__(self) -> None:
        for name in ("heartbeat_timeout", "step_timeout", "start_timeout", "max_backoff", "close_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(f"must be above 0 seconds, not {value}.", where=name)
        for name in ("backoff", "stable_after"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"must not be negative, but is {getattr(self, name)}.", where=name)

    @property
    def heartbeat(self) -> float:
        """Seconds between two signs of life."""
        return min(0.5, self.heartbeat_timeout / 8)

    def delay(self, failures: int) -> float:
        """Before the restart that follows so many failures in a row (at least 1)."""
        return float(min(self.max_backoff, self.backoff * 2.0 ** min(failures - 1, 30)))
