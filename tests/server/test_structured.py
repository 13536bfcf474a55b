"""Forms of the answer and tools in chat completions: what reaches the engine, and what OpenAI's client gets back."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.tools.definitions import make_tool
from slipstream.server.tools.dialects import arguments_rule
from tests.server.scripted import ScriptedEngine
from tests.server.serving import byte_tokenizer, echo_app, served

pytestmark = [pytest.mark.anyio, pytest.mark.fast]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get", "description": "Gets.", "parameters": SCHEMA}}
CALL = '<tool_call>{"name": "get", "arguments": {"city": "Ulm"}}</tool_call>'
HI: Any = [{"role": "user", "content": "Hi"}]
HERMES = "{% if tools %}[{{ tools | tojson }}]{% endif %}{% for m in messages %}{{ m | tojson }}{% endfor %}<tool_call>"


def client_of(engine: ScriptedEngine, template: str | None = HERMES, **options: Any) -> openai.AsyncOpenAI:
    model = served(byte_tokenizer(chat_template=template), max_model_len=1 << 14)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(echo_app(engine, model=model, **options)))
    return openai.AsyncOpenAI(base_url="http://tiny/v1", api_key="none", http_client=http, max_retries=0)


def prompt(engine: ScriptedEngine) -> str:
    return engine.prompts(byte_tokenizer().decode)[-1]


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec.json_object()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "c", "schema": SCHEMA, "strict": True},
                }
            },
            GrammarSpec.json_schema(SCHEMA),
        ),
        ({"response_format": {"type": "regex", "regex": "a+"}}, GrammarSpec.regex("a+")),
        ({"extra_body": {"structured_outputs": {"json": SCHEMA}}}, GrammarSpec.json_schema(SCHEMA)),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, GrammarSpec.regex("a+")),
        ({"extra_body": {"structured_outputs": {"choice": ["a", "b"]}}}, GrammarSpec.choice(["a", "b"])),
        ({"extra_body": {"structured_outputs": {"grammar": 'start: "a"'}}}, GrammarSpec.grammar('start: "a"')),
        ({"extra_body": {"structured_outputs": {"json_object": True}}}, GrammarSpec.json_object()),
        ({"extra_body": {"guided_json": json.dumps(SCHEMA)}}, GrammarSpec.json_schema(SCHEMA)),
        ({"extra_body": {"guided_regex": "a+"}}, GrammarSpec.regex("a+")),
        ({"extra_body": {"guided_choice": ["a"]}}, GrammarSpec.choice(["a"])),
        ({"extra_body": {"guided_grammar": 'start: "a"'}}, GrammarSpec.grammar('start: "a"')),
    ],
)
async def test_a_form_reaches_the_engine(fields: dict[str, Any], spec: GrammarSpec | None) -> None:
    engine = ScriptedEngine("x")
    await client_of(engine).chat.completions.create(model="tiny", messages=HI, **fields)
    extra = {"extra_body": {**fields.get("extra_body", {}), **{k: v for k, v in fields.items() if k != "extra_body"}}}
    await client_of(engine).completions.create(model="tiny", prompt="Hi", **extra)
    assert [request.params.grammar for request in engine.requests] == [spec, spec]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"reqex": "a"}}, "structured_outputs.reqex"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{" * 300_000}, "guided_json"),
        ({"response_format": {"type": "choice", "choice": ["a", "a"]}}, "response_format.choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}},
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
                },
            },
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
)
async def test_a_wrong_one_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client_of(ScriptedEngine("x")).chat.completions.create(model="tiny", messages=HI, extra_body=fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            ["response_format.json_schema.schema"],
        ),
        ({"response_format": {"type": "regex", "regex": "a+"}}, ["response_format.regex"]),
        ({"structured_outputs": {"json": SCHEMA}}, ["structured_outputs.json"]),
        ({"guided_json": SCHEMA}, ["guided_json"]),
        ({"guided_regex": "a"}, ["guided_regex"]),
        ({"tools": [TOOL], "tool_choice": "required"}, ["tools", "tools", "tools[0].function.parameters"]),
    ],
)
async def test_the_engine_s_errors_will_name_the_field(fields: dict[str, Any], names: list[str]) -> None:
    engine = ScriptedEngine(CALL)
    await client_of(engine).chat.completions.create(model="tiny", messages=HI, extra_body=fields)
    [request] = engine.requests
    assert request.params.grammar is not None
    assert list(request.params.grammar.fields) == names
    assert request.params.grammar.closing == ("tools" not in fields)


async def test_a_tool_with_too_many_optional_arguments_is_refused_where_it_would_be_enforced() -> None:
    many = {"type": "object", "properties": {f"p{i}": {} for i in range(500)}}
    tools = [TOOL, {"type": "function", "function": {"name": "many", "parameters": many}}]
    client = client_of(ScriptedEngine("x"))
    await client.chat.completions.create(model="tiny", messages=HI, extra_body={"tools": tools})
    with pytest.raises(openai.BadRequestError, match="500 optional properties") as caught:
        await client.chat.completions.create(
            model="tiny", messages=HI, extra_body={"tools": tools, "tool_choice": "required"}
        )
    assert caught.value.param == "tools[1].function.parameters"


async def test_a_parsed_answer() -> None:
    class City(BaseModel):
        city: str

    engine = ScriptedEngine('{"city": "Ulm"}')
    answer = await client_of(engine).chat.completions.parse(model="tiny", messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(city="Ulm")
    [request] = engine.requests
    assert request.params.grammar is not None
    assert request.params.grammar.kind == "json_schema"


async def test_calls_come_whole_and_in_pieces() -> None:
    engine = ScriptedEngine(f"I look.\n{CALL}\n{CALL}")
    client = client_of(engine)
    whole = await client.chat.completions.create(model="tiny", messages=HI, tools=[TOOL])
    [choice] = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls = choice.message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in calls] == [("get", '{"city": "Ulm"}')] * 2  # type: ignore[union-attr]
    assert '"name": "get"' in prompt(engine)
    async with client.chat.completions.stream(model="tiny", messages=HI, tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 4
    assert kinds.count("tool_calls.function.arguments.done") == 2
    message = final.choices[0].message
    assert message.content == "I look."
    assert [c.function.arguments for c in message.tool_calls or ()] == ['{"city": "Ulm"}'] * 2
    assert final.choices[0].finish_reason == "tool_calls"


async def test_parallel_calls_can_be_switched_off() -> None:
    engine = ScriptedEngine(CALL + CALL)
    answer = await client_of(engine).chat.completions.create(
        model="tiny", messages=HI, tools=[TOOL], parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or ()) == 1


async def test_choices_are_enforced_by_grammar() -> None:
    engine = ScriptedEngine(CALL)
    client = client_of(engine)
    named: Any = {"type": "function", "function": {"name": "get"}}
    for choice in ("auto", "none", "required", named):
        await client.chat.completions.create(model="tiny", messages=HI, tools=[TOOL], tool_choice=choice)
    grammars = [request.params.grammar for request in engine.requests]
    assert [grammar and grammar.kind for grammar in grammars] == [None, None, "grammar", "grammar"]
    assert ["get" in text for text in engine.prompts(byte_tokenizer().decode)] == [True, False, True, True]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_some_of_the_tools_can_be_allowed(mode: str) -> None:
    engine = ScriptedEngine(CALL)
    client = client_of(engine)
    other: Any = {"type": "function", "function": {"name": "other"}}
    named: Any = {"type": "function", "function": {"name": "get"}}
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
    answer = await client.chat.completions.create(model="tiny", messages=HI, tools=[other, TOOL], tool_choice=choice)
    assert [call.function.name for call in answer.choices[0].message.tool_calls or ()] == ["get"]  # type: ignore[union-attr]
    flat: Any = {"type": "function", **TOOL["function"]}
    allowed: Any = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "get"}]}
    responded = await client.responses.create(
        model="tiny", input="Hi", tools=[{"type": "function", "name": "other"}, flat], tool_choice=allowed
    )
    assert [item.type for item in responded.output] == ["function_call"]
    for request, text in zip(engine.requests, engine.prompts(byte_tokenizer().decode), strict=True):
        assert '"name": "other"' not in text
        grammar = request.params.grammar
        assert (grammar is not None) == (mode == "required")
        assert grammar is None or "other" not in grammar.source


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        (None, True),
        ({"type": "object", "properties": {}}, True),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, True),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, False),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, False),
    ],
)
def test_arguments_are_those_that_the_tool_names(parameters: dict[str, Any] | None, closed: bool) -> None:
    """A function without parameters was called with arguments that the model made up, up to the end of the budget."""
    rule = arguments_rule(make_tool("get", None, parameters, "tools[0]"))
    schema = json.loads(rule.removeprefix("%json "))
    assert (schema.get("additionalProperties") is False) == closed


async def test_without_a_choice_of_tools_calls_are_text() -> None:
    answer = await client_of(ScriptedEngine(CALL)).chat.completions.create(
        model="tiny", messages=HI, tools=[TOOL], tool_choice="none"
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALL, "stop")


async def test_earlier_calls_reach_the_template_as_objects() -> None:
    engine = ScriptedEngine("Sunny.")
    call: Any = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Ulm"}'}}
    messages: Any = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "27 degrees"},
    ]
    await client_of(engine).chat.completions.create(model="tiny", messages=messages, tools=[TOOL])
    assert '"arguments": {"city": "Ulm"}' in prompt(engine)
    assert '"tool_call_id": "c1"' in prompt(engine)


async def test_a_template_without_tools_needs_the_option() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    engine = ScriptedEngine(CALL)
    with pytest.raises(openai.BadRequestError, match="--tool-parser"):
        await client_of(engine, plain).chat.completions.create(model="tiny", messages=HI, tools=[TOOL])
    client = client_of(engine, plain, tool_parser="hermes")
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "system", "content": "S"}, *HI], tools=[TOOL]
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert prompt(engine).startswith("system: S\n\n")
    assert prompt(engine).count("system:") == 1
    assert '"name": "get"' in prompt(engine)
