"""The ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from slipstream.errors import SlipstreamError
from slipstream.server.context import ServerContext
from slipstream.server.key_limits import KeyLimits
from slipstream.server.middleware.auth import Authentication
from slipstream.server.middleware.body_limits import BodyLimits
from slipstream.server.middleware.request_scope import ID_HEADER, RequestScope
from slipstream.server.observe.http import HttpObserver
from slipstream.server.observe.setup import Observation, observe
from slipstream.server.openapi import install_openapi
from slipstream.server.refusals import plain_refusal, refusal
from slipstream.server.routes import (
    autopsy,
    chat,
    completions,
    docs,
    health,
    messages,
    meta,
    metrics,
    models,
    page,
    responses,
    tokenize,
)
from slipstream.server.sse import ClientGoneError
from slipstream.server.tracing import Tracing, make_tracing
from slipstream.version import installed_version

logger = logging.getLogger("slipstream.server")

_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}
"""FastAPI would watch every message of a stream as soon as OpenTelemetry is installed."""


def create_app(context: ServerContext) -> FastAPI:
    """The application over an engine that is ready to use; it closes the engine when it shuts down."""
    endpoint = context.options.otel_endpoint
    tracing = None if endpoint is None else make_tracing(endpoint, context.model.name)
    app = FastAPI(
        title="Slipstream",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=_lifespan(context, tracing),
        telemetry=_NO_TELEMETRY,
    )
    observation = observe(context.engine, context.model.name, clock=context.clock, wall=context.wall)
    context = replace(context, engine=observation.engine, on_slow_client=observation.metrics.backpressure_aborts.inc)
    app.state.context = context
    app.state.observation = observation
    for module in (completions, chat, messages, models, tokenize, health, meta, metrics, autopsy, docs):
        app.include_router(module.router)
    app.include_router(responses.make_router())
    app.include_router(page.make_router())
    app.add_exception_handler(SlipstreamError, _on_own_error)
    for gone in (ClientGoneError, ClientDisconnect):  # while it waits, or before all of its body is there
        app.add_exception_handler(gone, _on_client_gone)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_defect)
    install_openapi(app)
    _add_middleware(app, context, observation, tracing)
    return app


def _add_middleware(app: FastAPI, context: ServerContext, observation: Observation, tracing: Tracing | None) -> None:
    """The last one added sees a request first."""
    options = context.options
    limits = KeyLimits(context.clock, concurrency=options.key_concurrency, per_minute=options.key_requests_per_minute)
    app.add_middleware(BodyLimits, max_bytes=options.max_body_bytes, timeout=options.body_timeout)
    app.add_middleware(Authentication, keys=options.api_keys, limits=limits)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[ID_HEADER, "Retry-After"],
        )
    app.add_middleware(RequestScope, context=context)
    app.add_middleware(
        HttpObserver,
        metrics=observation.metrics,
        log=observation.log,
        on_delivered=None if tracing is None else tracing.record,
        clock=context.clock,
    )


def _lifespan(
    context: ServerContext, tracing: Tracing | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await context.engine.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    return lifespan


async def _on_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SlipstreamError)
    return refusal(request.scope, error)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; the number is for the log


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = {404: "there is no such route.", 405: "the route does not take this method."}.get(error.status_code)
    message = f"{request.method} {request.url.path}: {detail or error.detail}"
    return plain_refusal(request.scope, error.status_code, message, kind="invalid_request_error", headers=error.headers)


async def _on_defect(request: Request, error: Exception) -> Response:
    message = f"a defect of the server ({type(error).__name__}); its log has more."
    return plain_refusal(request.scope, 500, message, kind="server_error")
