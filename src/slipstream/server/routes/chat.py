"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from slipstream.server.answering import answer_stream, json_response, whole_outputs
from slipstream.server.answers.chat import ChatForm, ChatStream
from slipstream.server.chat_plan import plan_chat
from slipstream.server.context import Context
from slipstream.server.routes.bodies import answer_headers, body_of, documented
from slipstream.server.routes.jobs import make_job
from slipstream.server.schema.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=documented(ChatRequest), response_class=Response)
async def chat_completions(
    request: Request, context: Context, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]
) -> Response:
    """Answer a conversation through the model's chat template."""
    name = context.model.require(body.model)
    plan = await plan_chat(body, context.model, context.options)
    job = make_job(request, context, body, (plan.prompt,), plan.params)
    form = ChatForm(job, name, int(context.wall()), context.model.tokenizer, plan.parser)
    if body.stream:
        head = form.head("chat.completion.chunk")
        return await answer_stream(request, context, job, body, ChatStream(form), head, answer_headers(body))
    [output], account = await whole_outputs(request, context, job)
    return json_response(form.whole(output, account, timings=bool(body.timings)), answer_headers(body))
