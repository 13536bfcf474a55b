"""Counts HTTP requests and sees when an answer has reached its reader: pure ASGI, so that streams pass untouched."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.metrics.serving import ServingMetrics
from slipstream.server.observe.log import RequestLog
from slipstream.server.observe.record import RequestRecord

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OnDelivered = Callable[[RequestRecord, str | None], None]


class HttpObserver:
    """ASGI middleware. `on_delivered(record, traceparent)` is called for every request of the engine whose answer is
    over, with the caller's W3C trace context.

    An answer is matched to its records by `id_header` of the response. `send` returns when the transport takes more:
    while it waits, the reader is slow.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServingMetrics,
        log: RequestLog,
        *,
        on_delivered: OnDelivered | None = None,
        id_header: str = "x-request-id",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log
        self._on_delivered = on_delivered
        self._id_header = id_header
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        clock = self._clock
        started, waited, status, request_id = clock(), 0.0, 500, None

        async def watched(message: Message) -> None:
            nonlocal waited, status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = Headers(raw=message.get("headers", [])).get(self._id_header)
            before = clock()
            await send(message)
            waited += clock() - before

        try:
            await self._app(scope, receive, watched)
        finally:
            now = clock()
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.http_answered(method, route_of(scope), status, now - started)
            tenant = scope.get("slipstream.tenant")
            for record in self._log.delivered(tenant, request_id, started, now, waited) if request_id else ():
                self._metrics.stream_wait.observe(record.stream_wait)
                if self._on_delivered is not None:
                    self._on_delivered(record, Headers(scope=scope).get("traceparent"))


def route_of(scope: Scope) -> str:
    """The template of the route that answered, "unmatched" if none did: paths as sent would be endless labels."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
