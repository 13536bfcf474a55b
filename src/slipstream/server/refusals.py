"""Errors in the form of the API that was asked, from wherever in the server they come."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from slipstream.errors import SlipstreamError
from slipstream.server.errors import error_body, error_headers, mapped
from slipstream.server.messages_api.errors import anthropic_body, anthropic_error

_ANTHROPIC = "/v1/messages"


def refusal(scope: Scope, error: SlipstreamError, headers: Mapping[str, str] | None = None) -> Response:
    """As `errors.error_response`, but in Anthropic's form under /v1/messages."""
    body = anthropic_error(error) if _is_anthropic(scope) else error_body(error)
    headers = {**(headers or {}), **error_headers(error)}
    return Response(msgspec.json.encode(body), mapped(error).status, headers, media_type="application/json")


def plain_refusal(
    scope: Scope, status: int, message: str, *, kind: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Of what is no SlipstreamError; `kind` is OpenAI's name for it."""
    body = (
        anthropic_body(status, message)
        if _is_anthropic(scope)
        else {"error": {"message": message, "type": kind, "param": None, "code": None}}
    )
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def _is_anthropic(scope: Scope) -> bool:
    path = str(scope["path"])
    return path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/")
