"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from slipstream.sampling.params import SamplingParams
from slipstream.server.answering import json_response, whole_outputs
from slipstream.server.chat_plan import ChatPlan, plan_messages
from slipstream.server.context import Context, ServerContext
from slipstream.server.errors import UnsupportedError
from slipstream.server.messages_api.content import choice_of, grammar_of, messages_of
from slipstream.server.messages_api.errors import AnthropicRoute
from slipstream.server.messages_api.writer import MessageWriter
from slipstream.server.named_events import answer_named_events, whole_delta
from slipstream.server.responses.writer import new_id
from slipstream.server.routes.bodies import body_of, documented
from slipstream.server.routes.jobs import make_job
from slipstream.server.schema.common import sampling_params
from slipstream.server.schema.messages import CountTokensRequest, MessagesRequest

router = APIRouter(route_class=AnthropicRoute)


@router.post("/v1/messages", openapi_extra=documented(MessagesRequest), response_class=Response)
async def create_message(
    request: Request, context: Context, body: Annotated[MessagesRequest, Depends(body_of(MessagesRequest))]
) -> Response:
    """Answer a conversation, in the form of Anthropic's API."""
    name = context.model.require(body.model)
    shared = body.shared()
    params = sampling_params(shared, context.options, max_tokens=body.max_tokens, logprobs=None)
    plan = await _plan(body, context, params)
    job = make_job(request, context, shared, (plan.prompt,), plan.params)
    writer = MessageWriter(new_id("msg"), name, len(plan.prompt.token_ids), plan.parser(), timings=bool(body.timings))
    headers = {"X-Slipstream-Ignored": ", ".join(body.ignored)} if body.ignored else {}
    if body.stream:
        return await answer_named_events(request, context, job, writer, headers)
    [output], account = await whole_outputs(request, context, job)
    return json_response(writer.whole(whole_delta(job.id, output.outputs[0]), account), headers)


@router.post("/v1/messages/count_tokens", openapi_extra=documented(CountTokensRequest))
async def count_tokens(
    context: Context, body: Annotated[CountTokensRequest, Depends(body_of(CountTokensRequest))]
) -> dict[str, int]:
    """Prompt tokens that /v1/messages would feed."""
    context.model.require(body.model)
    plan = await _plan(body, context, SamplingParams())
    return {"input_tokens": len(plan.prompt.token_ids)}


async def _plan(body: CountTokensRequest, context: ServerContext, params: SamplingParams) -> ChatPlan:
    """Raises a RequestError, or ChatTemplateError where the template refuses the messages."""
    if body.thinking is not None and body.thinking.get("type") != "disabled":
        raise UnsupportedError("extended thinking is not supported.", where="thinking")
    return await plan_messages(
        messages_of(body),
        params,
        choice_of(body),
        grammar_of(body),
        model=context.model,
        options=context.options,
    )
