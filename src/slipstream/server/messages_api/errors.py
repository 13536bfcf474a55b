"""Errors in Anthropic's form: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from slipstream.errors import SlipstreamError
from slipstream.server.errors import error_headers, mapped

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: SlipstreamError) -> dict[str, Any]:
    return anthropic_body(mapped(error).status, str(error))


def anthropic_body(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": _TYPES.get(status, "api_error"), "message": message}}


class AnthropicRoute(APIRoute):
    """A route whose own errors have Anthropic's form; those from before the route get it in `refusals`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except SlipstreamError as error:
                body = msgspec.json.encode(anthropic_error(error))
                return Response(body, mapped(error).status, error_headers(error), media_type="application/json")

        return handle
