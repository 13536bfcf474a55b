"""GET /requests and /requests/{id}: where the time of requests went, and the one cause that dominated.

A key sees its own requests only; without keys everybody sees all. Neither prompts nor answers are kept.
"""

from __future__ import annotations

from itertools import islice

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from slipstream.errors import EngineError, RequestError
from slipstream.server.autopsy.report import RequestReport, report
from slipstream.server.context import Context, ServerContext
from slipstream.server.errors import BadRequestError, error_body
from slipstream.server.observe.record import RequestRecord
from slipstream.server.observe.setup import Observed
from slipstream.server.routes.jobs import tenant_of

router = APIRouter()
MAX_LIMIT = 500


@router.get("/requests", response_class=Response)
async def recent_requests(request: Request, context: Context, observation: Observed, limit: str = "50") -> Response:
    """The requests under way and the last ones that ended, latest first; `limit` of them, 500 at most."""
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MAX_LIMIT):
        raise BadRequestError(f"must be from 1 to {MAX_LIMIT}, got {limit!r:.50}.", param="limit")
    mine = islice(observation.log.recent(tenant_of(request)), int(limit))
    return _json({"requests": [await _report(context, record, steps=False) for record in list(mine)]})


@router.get("/requests/{request_id}", response_class=Response)
async def one_request(request: Request, context: Context, observation: Observed, request_id: str) -> Response:
    """One request, with the engine's steps for it. 404: not known (any more), or another key's."""
    record = observation.log.get(tenant_of(request), request_id)
    if record is None:
        unknown = RequestError(
            f"no request {request_id!r:.200} is known.",
            where="request_id",
            fix="The last ones that ended are kept; the id is the X-Request-Id of the answer.",
        )
        return Response(msgspec.json.encode(error_body(unknown)), 404, media_type="application/json")
    return _json(await _report(context, record, steps=True))


async def _report(context: ServerContext, record: RequestRecord, *, steps: bool) -> RequestReport:
    timeline = None
    if record.end is not None and record.outcome != "refused":
        try:
            timeline = await context.engine.timeline(record.engine_id)
        except EngineError:  # it is down; what the server saw is still true
            timeline = None
    return report(record, timeline, context.clock(), steps=steps)


def _json(data: object) -> Response:
    body = msgspec.json.encode(data)
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
