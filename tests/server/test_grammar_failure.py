"""A grammar that fails in the middle of an answer: an error of that request, which names the grammar."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import FailureKind
from tests.server.scripted import ScriptedEngine
from tests.server.serving import echo_app, served

pytestmark = [pytest.mark.anyio, pytest.mark.fast]

WHY = "the grammar cannot be followed beyond output 2: it is too large or too intricate; simplify it."
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


class FailingEngine(ScriptedEngine):
    """Says two tokens, then fails as the engine does."""

    def __init__(self, kind: FailureKind | None = "grammar") -> None:
        super().__init__("")
        self._kind = kind

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        self.requests.append(request)
        grammar = request.params.grammar
        yield OutputDelta(request.request_id, 0, "[1", (1, 2))
        where = "" if grammar is None else f"{grammar.name_of()}: "
        yield OutputDelta(
            request.request_id, 0, "", (), finish_reason="error", error=where + WHY, error_kind=self._kind
        )


def http(engine: FailingEngine) -> httpx.AsyncClient:
    app = echo_app(engine, model=served(max_model_len=4096), tool_parser="hermes")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def client_of(engine: FailingEngine) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http(engine), max_retries=0)


async def test_a_whole_answer_is_a_400_that_names_the_field() -> None:
    client = client_of(FailingEngine())
    extra = {"structured_outputs": {"regex": "a+"}}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra)
    assert (caught.value.param, caught.value.code) == ("structured_outputs.regex", "grammar_failed")
    assert caught.value.body == {
        "message": f"structured_outputs.regex: {WHY}",
        "type": "invalid_request_error",
        "param": "structured_outputs.regex",
        "code": "grammar_failed",
    }
    with pytest.raises(openai.BadRequestError, match="cannot be followed beyond output 2"):
        await client.completions.create(model="tiny", prompt="x", extra_body=extra)
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "array"}}}
    with pytest.raises(openai.BadRequestError, match="cannot be followed beyond output 2") as caught:
        await client.responses.create(model="tiny", input="x", text=form)
    assert caught.value.param == "text.format.schema"


async def test_a_stream_ends_with_the_same_error() -> None:
    async with http(FailingEngine()) as client:
        body = {"model": "tiny", "messages": MESSAGES, "stream": True, "guided_regex": "a+"}
        answer = await client.post("/v1/chat/completions", json=body)
    *events, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(events[-1].removeprefix("data: "))["error"] == {
        "message": f"guided_regex: {WHY}",
        "type": "invalid_request_error",
        "param": "guided_regex",
        "code": "grammar_failed",
    }


async def test_anthropic_s_form_says_so_too() -> None:
    tool = {"name": "get", "input_schema": {"type": "object"}}
    body = {"model": "tiny", "max_tokens": 9, "messages": MESSAGES, "tools": [tool], "tool_choice": {"type": "any"}}
    async with http(FailingEngine()) as client:
        whole = await client.post("/v1/messages", json=body)
        stream = await client.post("/v1/messages", json={**body, "stream": True})
    error = {"type": "invalid_request_error", "message": f"tools: {WHY}"}
    assert (whole.status_code, whole.json()["error"]) == (400, error)
    last = stream.text.strip().split("\n\n")[-1]
    assert json.loads(last.partition("data: ")[2])["error"] == error


async def test_other_failures_are_the_engine_s() -> None:
    for kind, extra in ((None, {"guided_regex": "a+"}), ("grammar", {})):
        with pytest.raises(openai.InternalServerError) as caught:
            await client_of(FailingEngine(kind)).chat.completions.create(  # type: ignore[arg-type]
                model="tiny", messages=MESSAGES, extra_body=extra
            )
        assert caught.value.code == "engine_error"
