"""HTTP connections that cannot be held open by doing nothing, which uvicorn alone would allow."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedProtocol(H11Protocol):
    """Closes connections whose request headers take longer than `header_timeout` to arrive (from the first byte, or
    from the connection's start), and those whose client takes nothing for `write_timeout` although data is waiting.

    Use `guarded(...)` as uvicorn's `http` option.
    """

    header_timeout = 10.0  # seconds
    write_timeout = 30.0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._header_timer is None and (before is None or before.response_complete):
            self._await_headers()
        super().data_received(data)
        if self.cycle is not before and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout, self._abort)

    def _stop_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = None

    def _abort(self) -> None:
        """At once: what is buffered would wait for the same client."""
        self.transport.abort()


def guarded(header_timeout: float, write_timeout: float) -> type[asyncio.Protocol]:
    """A protocol class with these limits, in seconds."""
    return type("Guarded", (GuardedProtocol,), {"header_timeout": header_timeout, "write_timeout": write_timeout})
