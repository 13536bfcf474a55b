"""Every request gets an id, a line in the log, and is counted while it is open."""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.server.context import ServerContext
from slipstream.server.errors import NotReadyError
from slipstream.server.refusals import refusal

logger = logging.getLogger("slipstream.server")

ID_HEADER = "X-Request-Id"
_OFTEN = frozenset({"/health", "/ready", "/metrics", "/stats", "/requests"})
_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(scope: Scope) -> str:
    """The id of the request, which is the engine's too."""
    return str(scope["slipstream.request_id"])


class RequestScope:
    """A client's X-Request-Id is kept if it is plain and no open request has it; the answer says which one is in force.

    Requests that make the engine work (POST) are refused while the server drains.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context, lifecycle = self._context, self._context.lifecycle
        name = self._name(Headers(scope=scope).get(ID_HEADER))
        scope["slipstream.request_id"] = name
        started, status = context.clock(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = name
            await send(message)

        lifecycle.open_ids.add(name)
        try:
            if lifecycle.draining and scope["method"] == "POST":
                error = NotReadyError("the server is shutting down.", retry_after=context.options.drain_timeout)
                await refusal(scope, error, {"Connection": "close"})(scope, receive, named)
            else:
                await self._app(scope, receive, named)
        finally:
            lifecycle.open_ids.discard(name)
            self._log(scope, name, status, context.clock() - started)

    def _name(self, given: str | None) -> str:
        if given is None or not _USABLE.fullmatch(given):
            return uuid.uuid4().hex
        return f"{given}-{uuid.uuid4().hex[:8]}" if self._is_taken(given) else given

    def _is_taken(self, name: str) -> bool:
        """By an open request, or by one of its prompts, which the engine knows as ID-0, ID-1 and so on."""
        ids = self._context.lifecycle.open_ids
        whole, _, number = name.rpartition("-")
        if name in ids or (number.isdigit() and whole in ids):
            return True
        return any(each.startswith(f"{name}-") for each in ids)

    def _log(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        """Probes, and what the web page asks every second, only where something is wrong."""
        quiet = scope["path"] in _OFTEN and status < 400
        logger.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %s",
            scope["method"],
            scope["path"],
            status or "no answer",
            extra={
                "request_id": name,
                "tenant": scope.get("slipstream.tenant"),
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(seconds, 4),
            },
        )
