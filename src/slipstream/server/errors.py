"""Errors as OpenAI's API writes them: a status, and {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.queue import QueueFullError
from slipstream.errors import (
    ChatTemplateError,
    ContextLengthError,
    DeadlineError,
    EngineError,
    EngineUnavailableError,
    GrammarError,
    OverloadedError,
    RequestError,
    SlipstreamError,
    TextTooLongError,
)
from slipstream.server.model import ModelNotServedError


class BadRequestError(RequestError):
    """A request body that is not valid; `param` is the field's path."""

    def __init__(self, what: str, *, param: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where=param, fix=fix)
        self.param = param


class UnsupportedError(RequestError):
    """Something that the API has and this server refuses, with the reason."""


class NotOfferedError(RequestError):
    """A route of the API that this server does not have, with the reason."""


class MissingError(RequestError):
    """Something that was asked for by its id and is not there."""


class AuthenticationError(SlipstreamError):
    """No API key, or one that is not known."""


class BodyTooLargeError(RequestError):
    """The connection is closed after the answer."""


class BodyTimeoutError(RequestError):
    """The connection is closed after the answer."""


class SlowClientError(SlipstreamError):
    """The client takes its stream more slowly than the model writes it, and the buffer is full."""


class RateLimitError(SlipstreamError):
    """A limit of the API key; `retry_after` in seconds."""

    def __init__(self, what: str, *, retry_after: float, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after = retry_after


class NotReadyError(SlipstreamError):
    """The server is starting or draining; `retry_after` in seconds."""

    def __init__(self, what: str, *, retry_after: float = 1.0) -> None:
        super().__init__(what)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Mapped:
    status: int
    type: str
    code: str | None


RETRY_AFTER = 1.0  # seconds, where the error does not say
_INVALID = "invalid_request_error"

# The first class that fits is taken.
_MAPPED: tuple[tuple[type[SlipstreamError], Mapped], ...] = (
    (AuthenticationError, Mapped(401, "authentication_error", "invalid_api_key")),
    (BodyTooLargeError, Mapped(413, _INVALID, "body_too_large")),
    (BodyTimeoutError, Mapped(408, "timeout_error", "body_timeout")),
    (MissingError, Mapped(404, _INVALID, "not_found")),
    (NotOfferedError, Mapped(404, _INVALID, "not_offered")),
    (ModelNotServedError, Mapped(404, _INVALID, "model_not_found")),
    (QueueFullError, Mapped(429, "rate_limit_error", "overloaded")),
    (OverloadedError, Mapped(429, "rate_limit_error", "overloaded")),
    (DeadlineError, Mapped(504, "timeout_error", "deadline_exceeded")),
    (SlowClientError, Mapped(408, "timeout_error", "slow_client")),
    (EngineUnavailableError, Mapped(503, "service_unavailable_error", "engine_unavailable")),
    (RateLimitError, Mapped(429, "rate_limit_error", "rate_limit_exceeded")),
    (NotReadyError, Mapped(503, "service_unavailable_error", "not_ready")),
    (ContextLengthError, Mapped(400, _INVALID, "context_length_exceeded")),
    (TextTooLongError, Mapped(400, _INVALID, "context_length_exceeded")),
    (RequestTooLargeError, Mapped(400, _INVALID, "request_too_large")),
    (UnsupportedError, Mapped(400, _INVALID, "unsupported")),
    (GrammarError, Mapped(400, _INVALID, "grammar_failed")),
    (RequestError, Mapped(400, _INVALID, None)),
    (ChatTemplateError, Mapped(400, _INVALID, "chat_template")),
    (EngineError, Mapped(500, "server_error", "engine_error")),
)
_UNEXPECTED = Mapped(500, "server_error", None)


def mapped(error: SlipstreamError) -> Mapped:
    return next((found for kind, found in _MAPPED if isinstance(error, kind)), _UNEXPECTED)


def error_body(error: SlipstreamError) -> dict[str, Any]:
    """{"error": ...}. `param` is the field that the error names."""
    found = mapped(error)
    param = error.where if isinstance(error, RequestError) and _is_field(error.where) else None
    return {"error": {"message": str(error), "type": found.type, "param": param, "code": found.code}}


def error_response(error: SlipstreamError, headers: Mapping[str, str] | None = None) -> Response:
    """With Retry-After (whole seconds, rounded up) where the error says when to come again."""
    return Response(
        msgspec.json.encode(error_body(error)),
        mapped(error).status,
        {**(headers or {}), **error_headers(error)},
        media_type="application/json",
    )


def error_headers(error: SlipstreamError) -> dict[str, str]:
    """Retry-After and the like."""
    retry_after = getattr(error, "retry_after", None)
    if retry_after is None and mapped(error).status in (429, 503):
        retry_after = RETRY_AFTER
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    if isinstance(error, BodyTooLargeError | BodyTimeoutError):
        headers["Connection"] = "close"  # what is still on its way is not read
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def _is_field(where: str | None) -> bool:
    return bool(where) and " " not in str(where)
