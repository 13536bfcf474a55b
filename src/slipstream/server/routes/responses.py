"""/v1/responses: answers with state, which later requests go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from slipstream.sampling.params import SamplingParams
from slipstream.server.answering import json_response, whole_outputs
from slipstream.server.chat_plan import plan_messages
from slipstream.server.context import Context, ServerContext
from slipstream.server.errors import BadRequestError, MissingError, UnsupportedError
from slipstream.server.named_events import answer_named_events, whole_delta
from slipstream.server.responses.items import choice_of, grammar_of_text, messages_of, tools_of
from slipstream.server.responses.store import ResponseStore, Stored
from slipstream.server.responses.writer import ResponseWriter, new_id
from slipstream.server.routes.bodies import body_of, documented
from slipstream.server.routes.jobs import make_job, tenant_of
from slipstream.server.schema.common import sampling_params
from slipstream.server.schema.responses import ResponsesRequest
from slipstream.server.tools.definitions import read_choice

_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")


def make_router(store: ResponseStore | None = None) -> APIRouter:
    """One store per application."""
    router = APIRouter()
    kept = ResponseStore() if store is None else store  # an empty one is false

    @router.post("/v1/responses", openapi_extra=documented(ResponsesRequest), response_class=Response)
    async def create_response(
        request: Request, context: Context, body: Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))]
    ) -> Response:
        """Answer a text or a list of items, after those of `previous_response_id` if it is given."""
        return await _create(request, context, body, kept)

    @router.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> dict[str, Any]:
        """A stored response."""
        return dict(_stored(kept, request, response_id).response)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
        """Forget a stored response; those that went on from it stay."""
        _stored(kept, request, response_id)
        kept.delete(tenant_of(request), response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(request: Request, response_id: str) -> dict[str, Any]:
        """The items that a stored response answered."""
        items = list(_stored(kept, request, response_id).input_items)
        ends = (
            {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
        )
        return {"object": "list", "data": items, **ends, "has_more": False}

    return router


async def _create(request: Request, context: ServerContext, body: ResponsesRequest, store: ResponseStore) -> Response:
    name = context.model.require(body.model)
    _refuse_unsupported(body)
    tenant = tenant_of(request)
    earlier: Sequence[Mapping[str, Any]] = ()
    if body.previous_response_id is not None:
        previous = store.get(tenant, body.previous_response_id)
        if previous is None:
            raise BadRequestError("is not stored here.", param="previous_response_id", fix="Send the items again.")
        earlier = previous.messages
    messages = [*earlier, *messages_of(body.input)]
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    choice = read_choice(
        choice_of(body.tool_choice), tools_of(body.tools), parallel=body.parallel_tool_calls is not False
    )
    shared = body.shared()
    plan = await plan_messages(
        _with_one_system([*instructions, *messages]),
        _params(body, context),
        choice,
        grammar_of_text(body.text),
        model=context.model,
        options=context.options,
    )
    job = make_job(request, context, shared, (plan.prompt,), plan.params)

    def keep(response: Mapping[str, Any]) -> None:
        if body.store is not False:
            store.put(tenant, response, _input_items(body), [*messages, *messages_of(response["output"])])

    base = _base(body, name, int(context.wall()), plan.params)
    writer = ResponseWriter(base, plan.parser(), context.model.tokenizer, keep, timings=bool(body.timings))
    headers = {"X-Slipstream-Ignored": ", ".join(body.ignored)} if body.ignored else {}
    if body.stream:
        return await answer_named_events(request, context, job, writer, headers)
    [output], account = await whole_outputs(request, context, job)
    return json_response(writer.whole(whole_delta(job.id, output.outputs[0]), account), headers)


def _stored(store: ResponseStore, request: Request, response_id: str) -> Stored:
    found = store.get(tenant_of(request), response_id)
    if found is None:
        raise MissingError("there is no such response, or it is kept no longer.", where="response_id")
    return found


def _refuse_unsupported(body: ResponsesRequest) -> None:
    if body.background:
        raise UnsupportedError(
            "answers in the background are not supported: a request lasts as long as its connection.",
            where="background",
            fix="Leave it out, and wait for the answer or set stream.",
        )
    if body.truncation == "auto":
        raise UnsupportedError(
            "items are never left out of a conversation that is too long.", where="truncation", fix="Use disabled."
        )


def _params(body: ResponsesRequest, context: ServerContext) -> SamplingParams:
    """Raises InvalidParamsError or BadRequestError that names the field."""
    for name in body.include or ():
        if name not in _INCLUDED:
            raise BadRequestError(f"{name!r:.80} cannot be included here.", param="include")
    logprobs = body.top_logprobs
    if logprobs is None and _LOGPROBS in (body.include or ()):
        logprobs = 0
    return sampling_params(body.shared(), context.options, max_tokens=body.max_output_tokens, logprobs=logprobs)


def _with_one_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Leading system messages joined: templates take one, at the beginning."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if len(result) == 1 and result[0]["role"] == message["role"] == "system":
            result[0] = {"role": "system", "content": f"{result[0]['content']}\n\n{message['content']}"}
        else:
            result.append(dict(message))
    return result


def _base(body: ResponsesRequest, model: str, created: int, params: SamplingParams) -> dict[str, Any]:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"strict": None, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _input_items(body: ResponsesRequest) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        content = [{"type": "input_text", "text": body.input}]
        return [{"type": "message", "id": new_id("msg"), "role": "user", "content": content, "status": "completed"}]
    return [{"type": "message", **item, "id": item.get("id") or new_id("item")} for item in body.input]
