"""GET /metrics for Prometheus, GET /stats for people and the web page."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from starlette.responses import Response

from slipstream.server.answering import json_response
from slipstream.server.context import Context
from slipstream.server.observe.setup import Observed

router = APIRouter()


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, observation: Observed) -> Response:
    """Prometheus text, or OpenMetrics if the Accept header asks for it."""
    body, content_type = observation.metrics.render(request.headers.get("accept", ""))
    return Response(body, media_type=content_type, headers={"Cache-Control": "no-store"})


@router.get("/stats", response_class=Response)
async def stats(context: Context) -> Response:
    """The engine's numbers now. Totals are over its life; times in seconds."""
    now = context.engine.stats()
    ready = context.engine.ready and not context.lifecycle.draining
    return json_response({"ready": ready, **asdict(now), "kv_usage": now.kv_usage}, {"Cache-Control": "no-store"})
