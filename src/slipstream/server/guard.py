"""HTTP connections that cannot be held open by doing nothing, which uvicorn alone would allow."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any


class Guard:
    """Goes before a protocol class of uvicorn. Closes connections whose request headers take longer than
    `header_timeout` to arrive (from the first byte, or from the connection's start), and those whose client takes
    nothing for `write_timeout` although data is waiting."""

    header_timeout = 10.0  # seconds
    write_timeout = 30.0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    # Of the protocol class.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = None
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self._header_timer is None and (before is None or before.response_complete):
            self._await_headers()
        super().data_received(data)  # type: ignore[misc]
        if self.cycle is not before and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._write_timer = self.loop.call_later(self.write_timeout, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout, self._abort)

    def _abort(self) -> None:
        """At once: what is buffered would wait for the same client."""
        self.transport.abort()


def guarded(
    header_timeout: float, write_timeout: float, *, base: type[asyncio.Protocol] | None = None
) -> type[asyncio.Protocol]:
    """A protocol class with these limits, in seconds, over `base`: by default uvicorn's fastest that is installed."""
    limits = {"header_timeout": header_timeout, "write_timeout": write_timeout}
    return type("Guarded", (Guard, base or fastest_protocol()), limits)


def fastest_protocol() -> type[asyncio.Protocol]:
    """httptools takes two thirds of the time that h11 takes for a chunk."""
    if importlib.util.find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        return HttpToolsProtocol
    from uvicorn.protocols.http.h11_impl import H11Protocol

    return H11Protocol
