"""/v1/responses through OpenAI's own client."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import openai
import pytest

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.keys import parse_keys
from slipstream.server.responses.store import ResponseStore
from slipstream.server.routes.responses import make_router
from tests.server.scripted import ScriptedEngine
from tests.server.serving import byte_tokenizer, echo_app, served

pytestmark = [pytest.mark.anyio, pytest.mark.fast]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "get", "description": "Gets.", "parameters": SCHEMA, "strict": True}
CALL = '<tool_call>{"name": "get", "arguments": {"city": "Ulm"}}</tool_call>'


def client_of(engine: ScriptedEngine, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
    app = echo_app(engine, model=served(max_model_len=1 << 14), tool_parser="hermes", **options)
    return another(app, key)


def another(app: Any, key: str) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tiny/v1")
    client = openai.AsyncOpenAI(base_url="http://tiny/v1", api_key=key, http_client=http, max_retries=0)
    client.app = app  # type: ignore[attr-defined]
    return client


def prompt(engine: ScriptedEngine, index: int = -1) -> str:
    return engine.prompts(byte_tokenizer().decode)[index]


async def test_a_text_is_answered() -> None:
    engine = ScriptedEngine("Hello you.", cached=5)
    answer = await client_of(engine).responses.create(
        model="tiny", input="Hi", instructions="Be kind.", max_output_tokens=9, temperature=0.5, metadata={"a": "b"}
    )
    assert answer.output_text == "Hello you."
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert (answer.instructions, answer.max_output_tokens, answer.metadata) == ("Be kind.", 9, {"a": "b"})
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    assert answer.usage.input_tokens_details.cached_tokens == 5
    assert answer.usage.total_tokens == answer.usage.input_tokens + 4
    [request] = engine.requests
    assert (request.params.max_tokens, request.params.temperature) == (9, 0.5)
    assert prompt(engine).index("Be kind.") < prompt(engine).index("Hi")


async def test_items_become_the_conversation() -> None:
    engine = ScriptedEngine("x")
    items = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "input_text", "text": "U1"}, {"type": "input_text", "text": "U2"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c1", "name": "get", "arguments": '{"city": "Ulm"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    await client_of(engine).responses.create(model="tiny", input=items, tools=[TOOL])  # type: ignore[arg-type]
    text = prompt(engine)
    places = [text.index(part) for part in ("D", "U1\nU2", "A", '"city": "Ulm"', "sunny")]
    assert places == sorted(places)


async def test_a_response_goes_on_from_an_earlier_one() -> None:
    engine = ScriptedEngine("First.", "Second.", "Third.")
    client = client_of(engine)
    first = await client.responses.create(model="tiny", input="One?", instructions="Only now.")
    second = await client.responses.create(model="tiny", input="Two?", previous_response_id=first.id)
    await client.responses.create(model="tiny", input="Three?", previous_response_id=second.id)
    text = prompt(engine)
    places = [text.index(part) for part in ("One?", "First.", "Two?", "Second.", "Three?")]
    assert places == sorted(places)
    assert "Only now." not in text
    assert (await client.responses.retrieve(first.id)).output_text == "First."
    [item] = (await client.responses.input_items.list(first.id)).data
    assert item.content[0].text == "One?"  # type: ignore[union-attr]
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await client.responses.create(model="tiny", input="x", previous_response_id=first.id)


async def test_what_is_not_to_be_stored_is_not() -> None:
    client = client_of(ScriptedEngine("x"))
    answer = await client.responses.create(model="tiny", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_a_key_sees_its_own_responses_only() -> None:
    ann = client_of(ScriptedEngine("x"), "a-secret", api_keys=parse_keys(["ann a-secret", "bob b-secret"], "test"))
    answer = await ann.responses.create(model="tiny", input="x")
    bob = another(ann.app, "b-secret")  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        await bob.responses.retrieve(answer.id)
    assert (await ann.responses.retrieve(answer.id)).id == answer.id


async def test_a_stream_tells_the_same_in_order() -> None:
    engine = ScriptedEngine(f"I look. {CALL}")
    async with client_of(engine).responses.stream(model="tiny", input="Hi", tools=[TOOL]) as stream:  # type: ignore[list-item]
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    message, call = final.output
    assert (message.type, final.output_text) == ("message", "I look.")
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), call.status) == ("get", {"city": "Ulm"}, "completed")
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert len(deltas) > 2


async def test_function_calls_go_on_with_their_result() -> None:
    engine = ScriptedEngine(CALL, "It is sunny.")
    client = client_of(engine)
    first = await client.responses.create(model="tiny", input="Weather?", tools=[TOOL])  # type: ignore[list-item]
    [call] = first.output
    assert call.type == "function_call"
    second = await client.responses.create(
        model="tiny",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
    )
    assert second.output_text == "It is sunny."
    assert prompt(engine).index('"city": "Ulm"') < prompt(engine).index("sunny")


async def test_forms_of_the_answer_reach_the_engine() -> None:
    engine = ScriptedEngine('{"city": "Ulm"}')
    client = client_of(engine)
    form: Any = {"format": {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}}
    await client.responses.create(model="tiny", input="x", text=form)
    await client.responses.create(model="tiny", input="x", text={"format": {"type": "json_object"}})
    await client.responses.create(
        model="tiny", input="x", tools=[TOOL], tool_choice={"type": "function", "name": "get"}
    )  # type: ignore[list-item]
    grammars = [request.params.grammar for request in engine.requests]
    assert grammars[:2] == [GrammarSpec.json_schema(SCHEMA), GrammarSpec.json_object()]
    assert grammars[2] is not None
    assert grammars[2].kind == "grammar"


async def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    client = client_of(ScriptedEngine("Hello", reason="length"))
    answer = await client.responses.create(model="tiny", input="x")
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    stream = await client.responses.create(model="tiny", input="x", stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"extra_body": {"colour": 1}}, "colour"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client_of(ScriptedEngine("x")).responses.create(**{"model": "tiny", "input": "x", **fields})
    assert caught.value.body["param"] == param  # type: ignore[index]
    assert "input should be" not in caught.value.body["message"]  # type: ignore[index]


def test_the_store_keeps_within_its_bounds() -> None:
    store = ResponseStore(max_responses=2)
    for name in "abc":
        store.put(None, {"id": name}, [], [])
    assert store.get(None, "a") is None
    assert store.get(None, "b") is not None
    store.put(None, {"id": "d"}, [], [])
    assert [store.get(None, name) is not None for name in "bcd"] == [True, False, True]
    small = ResponseStore(max_characters=100)
    for name in "ab":
        small.put(None, {"id": name}, [], [{"content": "x" * 60}])
    assert len(small) == 1
    assert small.delete(None, "b")
    assert not small.delete(None, "b")


@pytest.mark.parametrize("bound", [{"max_responses": 5}, {"max_characters": 500}])
def test_one_tenant_cannot_drive_out_what_another_has_stored(bound: dict[str, int]) -> None:
    store = ResponseStore(**bound)
    for name in ("mine-1", "mine-2"):
        store.put("me", {"id": name}, [], [{"content": "x" * 50}])
    for number in range(50):
        store.put("another", {"id": f"other-{number}"}, [], [{"content": "x" * 50}])
    assert store.get("me", "mine-1") is not None
    assert store.get("me", "mine-2") is not None
    assert store.get("another", "other-49") is not None
    assert store.get("another", "other-40") is None


def test_what_is_stored_takes_the_memory_that_is_counted() -> None:
    """As objects, half a million small fields took ten times their characters."""
    store = ResponseStore()
    metadata = {f"k{number}": "ü" for number in range(1000)}
    items = [{"type": "reasoning", "id": str(number)} for number in range(1000)]
    store.put(None, {"id": "a", "metadata": metadata}, items, [{"role": "user", "content": "ü"}])
    found = store.get(None, "a")
    assert found is not None
    assert sys.getsizeof(found.text) - sys.getsizeof("") == found.size
    assert found.response == {"id": "a", "metadata": metadata}
    assert found.input_items == items
    assert found.messages == [{"role": "user", "content": "ü"}]


async def test_a_router_uses_the_store_that_it_is_given() -> None:
    store = ResponseStore()
    app = echo_app()
    known = list(app.router.routes)
    app.include_router(make_router(store))
    app.router.routes[:] = [*app.router.routes[len(known) :], *known]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tiny") as client:
        assert (await client.post("/v1/responses", json={"input": "a"})).status_code == 200
    assert len(store) == 1
