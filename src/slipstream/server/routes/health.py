"""Probes, without an API key: /health says that the server lives, /ready that it takes requests."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from slipstream.server.answering import json_response
from slipstream.server.context import Context
from slipstream.server.errors import NotReadyError, error_response

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", response_class=Response)
async def health(context: Context) -> Response:
    """200 as long as this process answers; with what the engine warns of while it runs."""
    warning = context.engine.stats().speculation_warning
    return json_response({"status": "ok", "warnings": [warning]} if warning else {"status": "ok"})


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_class=Response)
async def ready(context: Context) -> Response:
    """200 when requests are taken; 503 while the engine starts or restarts, and while the server drains."""
    if context.lifecycle.draining:
        return error_response(NotReadyError("the server is shutting down."))
    if not context.engine.ready:
        return error_response(NotReadyError("the engine is not ready."))
    return json_response({"status": "ready"})
