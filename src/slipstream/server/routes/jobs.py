"""From a request to a job: who asks, how long they wait, whose cache."""

from __future__ import annotations

from fastapi import Request

from slipstream.sampling.params import SamplingParams
from slipstream.server.context import ServerContext
from slipstream.server.generate import Job, Prompt
from slipstream.server.middleware.request_scope import request_id
from slipstream.server.routes.bodies import timeout_of
from slipstream.server.schema.common import SharedFields


def tenant_of(request: Request) -> str | None:
    """Name of the API key; None where the server asks for none."""
    tenant: str | None = request.scope.get("slipstream.tenant")
    return tenant


def make_job(
    request: Request,
    context: ServerContext,
    body: SharedFields,
    prompts: tuple[Prompt, ...],
    params: SamplingParams,
) -> Job:
    """Raises InvalidParamsError for a bad timeout."""
    tenant = tenant_of(request)
    salt = None if tenant is None and body.cache_salt is None else f"{tenant or ''}\0{body.cache_salt or ''}"
    return Job(
        request_id(request.scope),
        prompts,
        params,
        timeout=timeout_of(request, body.timeout, context),
        priority=body.priority or 0,
        tenant=tenant,
        cache_salt=salt,
        speculative=None if body.speculative is None else body.speculative.wish(),
    )
