"""Bounds on a request's body: its size, and how long it may take to arrive."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.server.errors import BodyTimeoutError, BodyTooLargeError
from slipstream.server.refusals import refusal


class BodyLimits:
    """Raises BodyTooLargeError or BodyTimeoutError into whoever reads the body; a stated length that is too large is
    refused at once."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdigit() and (len(stated) > 18 or int(stated) > self._max_bytes):
            await refusal(scope, self._too_large())(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._timeout
        size, complete = 0, False

        async def bounded() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeoutError(f"the body did not arrive within {self._timeout:g} s.") from None
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise self._too_large()
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body may have {self._max_bytes} bytes at most.")
