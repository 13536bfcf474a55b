"""/v1/messages through Anthropic's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from fastapi import FastAPI

from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.keys import parse_keys
from tests.server.live import in_thread
from tests.server.scripted import ScriptedEngine
from tests.server.serving import byte_tokenizer, echo_app, served

pytestmark = [pytest.mark.anyio, pytest.mark.fast]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"name": "get", "description": "Gets.", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "get", "arguments": {"city": "Ulm"}}</tool_call>'
HI: Any = [{"role": "user", "content": "Hi"}]


def client_of(engine: ScriptedEngine, key: str = "none", **options: Any) -> anthropic.AsyncAnthropic:
    app = echo_app(engine, model=served(max_model_len=1 << 14), tool_parser="hermes", **options)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://tiny")
    return anthropic.AsyncAnthropic(base_url="http://tiny", api_key=key, http_client=http, max_retries=0)


def prompt(engine: ScriptedEngine) -> str:
    return engine.prompts(byte_tokenizer().decode)[-1]


async def test_a_conversation_is_answered() -> None:
    engine = ScriptedEngine("Hello you.", cached=7)
    answer = await client_of(engine).messages.create(
        model="tiny",
        max_tokens=50,
        system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
            {"role": "user", "content": [{"type": "text", "text": "V"}, {"type": "text", "text": "W"}]},
        ],
        extra_body={"temperature": 0.2, "top_k": 3},
        stop_sequences=["END"],
        metadata={"user_id": "u"},
    )
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello you."]
    assert (answer.role, answer.type, answer.stop_reason, answer.stop_sequence) == (
        "assistant",
        "message",
        "end_turn",
        None,
    )
    [request] = engine.requests
    assert answer.usage.cache_read_input_tokens == 7
    assert answer.usage.input_tokens == len(request.prompt_token_ids) - 7
    assert answer.usage.output_tokens == 4
    assert (request.params.max_tokens, request.params.top_k, request.params.stop) == (50, 3, ("END",))
    places = [prompt(engine).index(part) for part in ("S", "U", "A", "V\nW")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("engine", "reason", "sequence"),
    [
        (ScriptedEngine("x", reason="length"), "max_tokens", None),
        (ScriptedEngine("x", stop_reason="END"), "stop_sequence", "END"),
        (ScriptedEngine(CALL), "tool_use", None),
    ],
)
async def test_why_it_ended_is_told(engine: ScriptedEngine, reason: str, sequence: str | None) -> None:
    answer = await client_of(engine).messages.create(model="tiny", max_tokens=5, messages=HI, tools=[TOOL])
    assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


async def test_a_stream_tells_the_same() -> None:
    engine = ScriptedEngine(f"I look. {CALL}\n{CALL}", cached=3)
    async with client_of(engine).messages.stream(model="tiny", max_tokens=50, messages=HI, tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    text, first, second = final.content
    assert text.type == "text"
    assert text.text == "I look."
    assert first.type == second.type == "tool_use"
    assert first.input == second.input == {"city": "Ulm"}
    assert first.id != second.id
    assert final.stop_reason == "tool_use"
    assert final.usage.cache_read_input_tokens == 3


async def test_results_of_tools_go_back() -> None:
    engine = ScriptedEngine(CALL, "Sunny.")
    client = client_of(engine)
    first = await client.messages.create(model="tiny", max_tokens=50, messages=HI, tools=[TOOL])
    [call] = first.content
    assert call.type == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "27 degrees"}]}
    again: Any = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await client.messages.create(model="tiny", max_tokens=50, messages=again, tools=[TOOL])
    assert second.stop_reason == "end_turn"
    assert prompt(engine).index('"city": "Ulm"') < prompt(engine).index("27 degrees")


async def test_choices_and_forms_reach_the_engine() -> None:
    engine = ScriptedEngine("{}")
    client = client_of(engine)
    choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "get"}, {"type": "auto"}, {"type": "none"}]
    for choice in choices:
        await client.messages.create(model="tiny", max_tokens=5, messages=HI, tools=[TOOL], tool_choice=choice)
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    await client.messages.create(model="tiny", max_tokens=5, messages=HI, extra_body={"output_config": form})
    grammars = [request.params.grammar for request in engine.requests]
    assert [grammar and grammar.kind for grammar in grammars] == ["grammar", "grammar", None, None, "json_schema"]
    assert grammars[4] == GrammarSpec.json_schema(SCHEMA)


async def test_tokens_are_counted_as_they_are_fed() -> None:
    engine = ScriptedEngine("x")
    client = client_of(engine)
    counted = await client.messages.count_tokens(model="tiny", system="S", messages=HI, tools=[TOOL])
    await client.messages.create(model="tiny", max_tokens=5, system="S", messages=HI, tools=[TOOL])
    assert counted.input_tokens == len(engine.requests[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"extra_body": {"colour": 1}}, "colour"),
        ({"model": "nobody"}, "model"),
    ],
)
async def test_what_is_not_supported_is_refused_in_anthropic_s_form(fields: dict[str, Any], where: str) -> None:
    asked = {"model": "tiny", "max_tokens": 5, "messages": HI, **fields}
    with pytest.raises((anthropic.BadRequestError, anthropic.NotFoundError)) as caught:
        await client_of(ScriptedEngine("x")).messages.create(**asked)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["message"].startswith(where + ":")
    assert body["error"]["type"] in ("invalid_request_error", "not_found_error")


def test_the_plain_client_with_its_key_over_a_socket() -> None:
    model = served(max_model_len=1 << 14)
    with in_thread(ScriptedEngine("Hello"), model=model, api_keys=parse_keys(["ann s3cret"], "test")) as url:
        with (
            anthropic.Anthropic(base_url=url, api_key="s3cret", max_retries=0) as client,
            client.messages.stream(model="tiny", max_tokens=5, messages=HI) as stream,
        ):
            assert "".join(stream.text_stream) == "Hello"
        wrong = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
        with wrong, pytest.raises(anthropic.AuthenticationError) as caught:
            wrong.messages.create(model="tiny", max_tokens=5, messages=HI)
        error = {"type": "authentication_error", "message": "the API key is not known."}
        assert caught.value.body == {"type": "error", "error": error}


async def raw(app: FastAPI, path: str = "/v1/messages", method: str = "POST", **values: Any) -> tuple[int, str]:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False), base_url="http://tiny"
    ) as client:
        response = await client.request(method, path, **values)
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    return response.status_code, body["error"]["type"]


async def test_errors_from_before_the_route_have_anthropic_s_form() -> None:
    app = echo_app(max_body_bytes=100)
    assert await raw(app, content=b"x" * 101) == (413, "request_too_large")
    assert await raw(app, content=b"{") == (400, "invalid_request_error")
    assert await raw(app, method="GET") == (405, "invalid_request_error")
    assert await raw(app, "/v1/messages/batches") == (404, "not_found_error")
    limited = echo_app(api_keys=parse_keys(["ann s"], "test"), key_requests_per_minute=1)
    asked = {"headers": {"X-Api-Key": "s"}, "json": {}}
    await raw(limited, **asked)
    assert await raw(limited, **asked) == (429, "rate_limit_error")
    app.state.context.lifecycle.draining = True
    assert await raw(app, json={}) == (503, "overloaded_error")


async def test_a_defect_of_the_server_has_anthropic_s_form() -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
            raise ZeroDivisionError
            yield

    body = {"model": "tiny", "max_tokens": 3, "messages": HI}
    assert await raw(echo_app(Broken("x")), json=body) == (500, "api_error")
