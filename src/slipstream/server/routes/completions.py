"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from slipstream.server.answering import answer_stream, json_response, whole_outputs
from slipstream.server.answers.completions import CompletionForm, CompletionStream
from slipstream.server.context import Context
from slipstream.server.prompts import completion_prompt
from slipstream.server.routes.bodies import answer_headers, body_of, documented
from slipstream.server.routes.jobs import make_job
from slipstream.server.schema.completions import CompletionRequest, completion_params

router = APIRouter()


@router.post("/v1/completions", openapi_extra=documented(CompletionRequest), response_class=Response)
async def completions(
    request: Request,
    context: Context,
    body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))],
) -> Response:
    """Continue one prompt or several, as they are: no chat template is applied."""
    name = context.model.require(body.model)
    params = completion_params(body, context.options)
    prompts = tuple([await completion_prompt(context.model, prompt) for prompt in body.prompts])
    job = make_job(request, context, body, prompts, params)
    form = CompletionForm(
        job, name, int(context.wall()), context.model.tokenizer, bool(body.echo), body.max_tokens == 0
    )
    if body.stream:
        return await answer_stream(
            request, context, job, body, CompletionStream(form), form.head(), answer_headers(body)
        )
    outputs, account = await whole_outputs(request, context, job)
    return json_response(form.whole(outputs, account, timings=bool(body.timings)), answer_headers(body))
