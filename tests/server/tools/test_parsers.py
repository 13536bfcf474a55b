"""Every dialect's text to content and calls, and the same whatever the pieces it comes in."""

# ruff: noqa: E501
from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.server.answers.chat import Message
from slipstream.server.chat_parts import OutputParser
from slipstream.server.tools.definitions import Tool, ToolChoice
from slipstream.server.tools.dialects import DIALECTS, Dialect, find_dialect
from tests.sampling.grammar.tiny_vocabulary import text_of, walk

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opt": {"type": "object"}},
    "required": ["city"],
}
TOOLS = (Tool("get", None, SCHEMA), Tool("get_weather", "The weather.", SCHEMA), Tool("now", None, {"type": "object"}))
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
ARGS = '{"city": "Ulm \\"}{[", "days": 3}'


def new(name: str, *, parallel: bool = True) -> OutputParser:
    return BY_NAME[name].new_parser(ToolChoice("auto", TOOLS, parallel))


def read(parser: OutputParser, *pieces: str) -> tuple[str, list[tuple[str | None, str]], str]:
    """(content, [(name, arguments)], finish reason)"""
    message = Message()
    for piece in pieces:
        message.add(parser.push(piece))
    message.add(parser.finish())
    calls = [message.tool_calls[index] for index in sorted(message.tool_calls)]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    return message.content, [(call.name, call.arguments) for call in calls], parser.finish_reason("stop")


# fmt: off
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello <b>you</b>\n", "Hello <b>you</b>\n", []),
    ("hermes", f'<tool_call>\n{{"name": "get", "arguments": {ARGS}}}\n</tool_call>', "", [("get", ARGS)]),
    (
        "hermes",
        f'I look. \n<tool_call>{{"arguments": {ARGS}, "name": "get_weather"}}</tool_call>\n'
        '<tool_call>\n{"name": "now"}\n</tool_call>\n',
        "I look.",
        [("get_weather", ARGS), ("now", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get", "arguments": "{\\"city\\": \\"a\\"}"}</tool_call>',
        "",
        [("get", '{"city": "a"}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", "a <tool_call>not json</tool_call>", "a <tool_call>not json</tool_call>", []),
    ("hermes", 'a <tool_call> <tool_call>{"name": "now"}', "a <tool_call>", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}} </tool_call> bye', " bye", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "get", "arguments": {"city": "U', "", [("get", '{"city": "U')]),
    ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    ("hermes", "x <tool_", "x <tool_", []),
    ("hermes", '<tool_call>{"name": "now"}\n</tool_ca', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call> <tool_', " <tool_", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {} oops</tool_call>', "ops", [("now", "{}")]),
    ("llama3", f'{{"name": "get", "parameters": {ARGS}}}', "", [("get", ARGS)]),
    ("llama3", f'\n<|python_tag|>{{"type": "function", "name": "get", "parameters": {ARGS}}}', "", [("get", ARGS)]),
    (
        "llama3",
        '{"name": "now", "parameters": {}}; {"name": "get", "parameters": {"city": "a"}}',
        "",
        [("now", "{}"), ("get", '{"city": "a"}')],
    ),
    ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    ("llama3", 'As JSON: {"name": "now", "parameters": {}}', 'As JSON: {"name": "now", "parameters": {}}', []),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "get", "arguments": {ARGS}}}, {{"name": "now", "arguments": {{}}}}]',
        "",
        [("get", ARGS), ("now", "{}")],
    ),
    (
        "mistral",
        f"Well. [TOOL_CALLS]get_weather{ARGS}[TOOL_CALLS]now[ARGS]{{}}",
        "Well.",
        [("get_weather", ARGS), ("now", "{}")],
    ),
    ("mistral", "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]", []),
    ("mistral", "[1, 2] [TOOL", "[1, 2] [TOOL", []),
    ("glm4", f"get_weather\n{ARGS}", "", [("get_weather", ARGS)]),
    ("glm4", f"\nnow\n{{}}\nget\n{ARGS}", "", [("now", "{}"), ("get", ARGS)]),
    ("glm4", "get away\nnow\n{}", "get away\nnow\n{}", []),
    ("glm4", "now\nis the time", "now\nis the time", []),
    (
        "glm45",
        "Sure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>x</arg_key><arg_value>a > b</arg_value>\n</tool_call>"
        "\n<tool_call>now</tool_call>\n<tool_call>now\n</tool_call>",
        "Sure.",
        [("get_weather", '{"city": "12", "days": 3, "x": "a > b"}'), ("now", "{}"), ("now", "{}")],
    ),
    ("glm45", "<tool_call>nobody\n</tool_call>", "<tool_call>nobody\n</tool_call>", []),
]
# fmt: on


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), CASES)
def test_text_becomes_content_and_calls(dialect: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(new(dialect), text) == (content, calls, "tool_calls" if calls else "stop")
    assert read(new(dialect), *text) == (content, calls, "tool_calls" if calls else "stop")


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(CASES))
def test_any_cut_gives_the_same(data: st.DataObject, case: tuple[str, str, str, list[tuple[str, str]]]) -> None:
    dialect, text, content, calls = case
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(new(dialect), *pieces) == (content, calls, "tool_calls" if calls else "stop")


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '{"name": "get", ', '"arguments": ', '"parameters": ',
    ARGS, "{}", "}", "[", "]", "\n", " ", "get", "get_weather\n", "now", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "text ", '"', "\\", ";", ",", "é",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BY_NAME)), st.lists(st.sampled_from(FRAGMENTS), max_size=14), st.booleans(), st.data())
def test_whatever_the_text_the_cut_does_not_matter(
    dialect: str, fragments: list[str], parallel: bool, data: st.DataObject
) -> None:
    text = "".join(fragments)
    whole = read(new(dialect, parallel=parallel), text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(new(dialect, parallel=parallel), *pieces) == whole
    if not whole[1]:
        assert whole[0] == text


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_without_parallel_calls_the_first_is_the_last(name: str) -> None:
    two = {
        "hermes": '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "get"}</tool_call>',
        "llama3": '{"name": "now"}; {"name": "get"}',
        "mistral": '[TOOL_CALLS]now{}[TOOL_CALLS]get{"city": "a"}',
        "glm4": 'now\n{}\nget\n{"city": "a"}',
        "glm45": "<tool_call>now</tool_call><tool_call>get</tool_call>",
    }[name]
    assert len(read(new(name), two)[1]) == 2
    assert read(new(name, parallel=False), two) == ("", [("now", "{}")], "tool_calls")


def test_arguments_stream() -> None:
    parser = new("hermes")
    parser.push('<tool_call>{"name": "get", "arguments": {"city": ')
    assert parser.push('"Ul').tool_calls[0].arguments == '"Ul'
    assert parser.push('m"}').tool_calls[0].arguments == 'm"}'


def test_mistral_ids_have_the_form_that_its_template_wants() -> None:
    message = new("mistral").push("[TOOL_CALLS]now{}")
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", message.tool_calls[0].id or "")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call> <arg_key>", "glm45"),
        ("[TOOL_CALLS]", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        ("<|observation|>", "glm4"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_tells_its_dialect(template: str, name: str | None) -> None:
    found = find_dialect(template)
    assert (found and found.name) == name
    assert find_dialect(template, "llama3") is BY_NAME["llama3"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_grammar_allows_the_parser_reads(dialect: Dialect, parallel: bool, seed: int) -> None:
    choice = ToolChoice("required", TOOLS[1:], parallel)
    tokens, at = walk(replace(dialect.grammar(choice), closing=True), 400, seed)
    assert at.accepting
    content, calls, reason = read(dialect.new_parser(choice), text_of(tokens))
    assert content == ""
    assert reason == "tool_calls"
    assert len(calls) >= 1
    assert parallel or len(calls) == 1
    for name, arguments in calls:
        value: dict[str, Any] = json.loads(arguments)
        assert name == "now" or isinstance(value["city"], str)
