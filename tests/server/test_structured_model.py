"""Structured output and tools with a real model and the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from slipstream.engine.async_engine import AsyncEngine
from tests.server.live import in_thread
from tests.server.serving import served

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "population": {"type": "integer"},
        "rivers": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "population", "rivers"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
ASK: Any = [{"role": "user", "content": "Tell me about Paris as JSON."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    engine = AsyncEngine.load(str(smollm2_path), num_threads=1, max_model_len=1024)
    model = served(engine.tokenizer, vocab_size=engine.info.vocab_size, max_model_len=engine.info.max_model_len)
    with in_thread(engine, model=model, tool_parser="hermes") as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("max_tokens", "temperature"), [(14, 0), (17, 1.5), (25, 1.5), (60, 1.0)])
def test_an_answer_fits_its_schema_and_its_budget(client: openai.OpenAI, max_tokens: int, temperature: float) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=max_tokens, temperature=temperature, seed=1, n=3, response_format=FORM
    )
    for choice in answer.choices:
        value = json.loads(choice.message.content or "")
        assert value.keys() == {"name", "population", "rivers"}
        assert choice.finish_reason == "stop"


def test_a_required_call_fits_the_tool(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": FUNCTION}
    stream = client.chat.completions.create(
        model="tiny",
        messages=ASK,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=70,
        temperature=0,
        stream=True,
    )
    deltas = [chunk.choices[0] for chunk in stream]
    calls = [call for choice in deltas for call in choice.delta.tool_calls or ()]
    arguments = json.loads("".join(call.function.arguments or "" for call in calls if call.function))
    assert arguments["unit"] in ("C", "F")
    assert isinstance(arguments["city"], str)
    assert deltas[-1].finish_reason == "tool_calls"


def test_anthropic_s_client_gets_a_named_call(url: str) -> None:
    # Whatever is drawn ends within the budget: a call is not completed for it.
    properties = {**PARAMETERS["properties"], "city": {"enum": ["Ulm", "Bern"]}}
    tool: Any = {"name": "get_weather", "input_schema": {**PARAMETERS, "properties": properties}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(
            model="tiny",
            max_tokens=70,
            messages=ASK,
            tools=[tool],
            tool_choice={"type": "tool", "name": "get_weather"},
        )
    [block] = answer.content
    assert block.type == "tool_use"
    assert block.input.keys() >= {"city", "unit"}
    assert answer.stop_reason == "tool_use"


@pytest.mark.parametrize("max_tokens", [20, 26, 30])
def test_a_call_that_the_budget_cuts_off_is_not_made_up(client: openai.OpenAI, max_tokens: int) -> None:
    """It was completed in the fewest tokens, {"city":"","unit":"C"}, with reason tool_calls."""
    rich = {"type": "object", "properties": {"city": {"type": "string", "minLength": 60}}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": rich}}
    whole = client.chat.completions.create(
        model="tiny", messages=ASK, tools=[tool], tool_choice="required", max_tokens=max_tokens, temperature=0
    )
    [choice] = whole.choices
    assert choice.finish_reason == "length"
    [call] = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "look"
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)


def test_a_schema_that_cannot_be_used_is_a_400_with_the_reason(client: openai.OpenAI) -> None:
    bad: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}
    with pytest.raises(openai.BadRequestError, match="cannot be used: Invalid type: wrong") as caught:
        client.chat.completions.create(model="tiny", messages=ASK, response_format=bad)
    assert caught.value.param == "response_format.json_schema.schema"
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "wrong"}}}}
    tools: Any = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": function}]
    with pytest.raises(openai.BadRequestError, match="cannot be used: Invalid type: wrong") as caught:
        client.chat.completions.create(model="tiny", messages=ASK, tools=tools, tool_choice="required")
    assert caught.value.param == "tools[1].function.parameters"
