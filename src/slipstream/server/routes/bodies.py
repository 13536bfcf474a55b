"""What routes share: the body as a checked model, the answer's headers, ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request

from slipstream.errors import InvalidParamsError
from slipstream.server.context import ServerContext
from slipstream.server.schema.base import RequestModel, read_body
from slipstream.server.schema.common import SharedFields

Body = TypeVar("Body", bound=RequestModel)

TIMEOUT_HEADER = "X-Request-Timeout"


def body_of(kind: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """A dependency that reads and checks the request's JSON body."""

    async def read(request: Request) -> Body:
        return read_body(kind, await request.body())

    return read


def documented(kind: type[RequestModel]) -> dict[str, Any]:
    """For `openapi_extra` of a route whose body is read by `body_of`; `app` puts the schemas it names in place."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


def answer_headers(body: SharedFields) -> dict[str, str]:
    return {"X-Slipstream-Ignored": ", ".join(body.ignored)} if body.ignored else {}


def timeout_of(request: Request, body_timeout: float | None, context: ServerContext) -> float | None:
    """Seconds: the least of the header, the body's field and the server's limit. Raises InvalidParamsError."""
    header = request.headers.get(TIMEOUT_HEADER)
    stated: list[float] = []
    if header is not None:
        try:
            stated.append(float(header))
        except ValueError as error:
            raise InvalidParamsError(f"must be seconds, got {header!r:.50}.", where=TIMEOUT_HEADER) from error
    if body_timeout is not None:
        stated.append(body_timeout)
    for seconds in stated:
        if not 0 < seconds < 1e9:
            raise InvalidParamsError(f"must be above 0 and below 1e9 seconds, got {seconds}.", where="timeout")
    limit = context.options.request_timeout
    return min([*stated, *([] if limit is None else [limit])], default=None)
