"""How the families write tool calls: their parsers, and grammars that leave a model nothing else to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.sampling.grammar.bounds import bound_schema
from slipstream.sampling.grammar.limits import schema_fault
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.chat_parts import OutputParser
from slipstream.server.errors import BadRequestError
from slipstream.server.tools.calls import Gathered, JsonCall, mistral_id, openai_id
from slipstream.server.tools.definitions import Tool, ToolChoice
from slipstream.server.tools.parser import MarkedCalls
from slipstream.server.tools.readers import MistralCalls, NamedJson, TaggedArguments

MAX_CALLS = 16  # that a grammar allows in one message


@dataclass(frozen=True, slots=True)
class Dialect:
    """`before` and `after` surround one call in a grammar, `between` separates calls. `detects`: whether a chat
    template speaks it. `special`: its marks are control tokens, which the text has to show."""

    name: str
    parser: Callable[[Gathered, Sequence[Tool], bool], OutputParser]
    call: Callable[[Tool], str]  # one call in Lark
    detects: Callable[[str], bool]
    opening: str = ""  # before the first call
    between: str = ""
    closing: str = ""
    make_id: Callable[[], str] = openai_id
    special: bool = False

    def new_parser(self, choice: ToolChoice) -> OutputParser:
        names = frozenset(tool.name for tool in choice.tools)
        return self.parser(Gathered(names, self.make_id), choice.tools, choice.parallel)

    def grammar(self, choice: ToolChoice) -> GrammarSpec:
        """At least one call of the choice's tools and nothing else; exactly one where calls may not be parallel.

        It is not closed when tokens run out: arguments that only the end of the budget wrote would look like the
        model's. Raises BadRequestError for a schema that is known to be more than can be followed.
        """
        for tool in choice.tools:
            fault = schema_fault(tool.parameters)
            if fault is not None:
                raise BadRequestError(f"cannot be used: {fault}.", param=tool.field)
        rules = [f"call_{index}: {self.call(tool)}" for index, tool in enumerate(choice.tools)]
        calls = " | ".join(f"call_{index}" for index in range(len(choice.tools)))
        more = f" ({_text(self.between)} call){{0,{MAX_CALLS - 1}}}" if choice.parallel else ""
        start = f"start: {_text(self.opening)} call{more} {_text(self.closing)}"
        spec = GrammarSpec("grammar", "\n".join([start, f"call: {calls}", *rules]), closing=False)
        return spec.named("tools", "tools", *(tool.field for tool in choice.tools))


_OPENING = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "minProperties")


def arguments_rule(tool: Tool) -> str:
    """The tool's arguments in Lark: its schema, an object whatever it says, bounded and without whitespace; with the
    arguments that it names and no others, unless it speaks of others."""
    schema: dict[str, Any] = {"type": "object", **bound_schema(dict(tool.parameters))}
    if _names_all(schema):
        schema["additionalProperties"] = False
    return _json_rule(schema)


def _names_all(schema: Mapping[str, Any]) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or any(key in schema for key in _OPENING):
        return False
    return all(name in properties for name in required if isinstance(name, str))


def _json_rule(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _object_call(tool: Tool, key: str, before: str = "", after: str = "") -> str:
    head = f'{before}{{"name": {json.dumps(tool.name)}, "{key}": '
    return f"{_text(head)} {arguments_rule(tool)} {_text('}' + after)}"


def _hermes(out: Gathered, tools: Sequence[Tool], parallel: bool) -> OutputParser:
    return MarkedCalls(out, JsonCall, begins=("<tool_call>",), ends=("</tool_call>",), parallel=parallel)


def _llama(out: Gathered, tools: Sequence[Tool], parallel: bool) -> OutputParser:
    return MarkedCalls(out, JsonCall, begins=("<|python_tag|>",), ends=(";", "<|eom_id|>"), bare="{", parallel=parallel)


def _mistral(out: Gathered, tools: Sequence[Tool], parallel: bool) -> OutputParser:
    return MarkedCalls(out, MistralCalls, begins=("[TOOL_CALLS]",), parallel=parallel)


def _glm45(out: Gathered, tools: Sequence[Tool], parallel: bool) -> OutputParser:
    schemas = {tool.name: tool.parameters for tool in tools}
    return MarkedCalls(out, lambda: TaggedArguments(schemas), begins=("<tool_call>",), parallel=parallel)


def _glm4(out: Gathered, tools: Sequence[Tool], parallel: bool) -> OutputParser:
    names = [tool.name + "\n" for tool in tools]
    return LineCalls(out, names, parallel=parallel)


class LineCalls(MarkedCalls):
    """GLM-4: the message is a tool's name on a line of its own, then its arguments; calls follow one another."""

    def __init__(self, out: Gathered, names: Sequence[str], *, parallel: bool) -> None:
        super().__init__(out, lambda: NamedJson(line=True), begins=names, ends=("<|assistant|>",), parallel=parallel)

    def _start(self, first: str) -> None:
        if self._shown:  # a name within a text
            held, self._held = self._held, ""
            self._show(held)
            return
        super()._start(self._held.lstrip())


def _tagged_call(tool: Tool) -> str:
    """GLM-4.5 writes arguments as text between tags, in any order: required ones here in the order of the schema."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    parts = []
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        text = isinstance(schema, dict) and schema.get("type") == "string"
        enum = schema.get("enum") if isinstance(schema, dict) else None
        if text and isinstance(enum, list) and enum and all(isinstance(each, str) for each in enum):
            value = "(" + " | ".join(_text(each) for each in enum) + ")"
        elif text:
            value = "/[^<]{0,4096}/"
        else:
            value = _json_rule(_schema(schema))
        body = (
            f"{_text(f'<arg_key>{name}</arg_key>' + chr(10) + '<arg_value>')} {value} {_text('</arg_value>' + chr(10))}"
        )
        parts.append(body if isinstance(required, list) and name in required else f"({body})?")
    return " ".join([_text(f"<tool_call>{tool.name}\n"), *parts, _text("</tool_call>")])


def _schema(schema: Any) -> dict[str, Any]:
    bounded = bound_schema(schema)
    return bounded if isinstance(bounded, dict) else {}


DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "mistral",
        _mistral,
        lambda tool: _object_call(tool, "arguments"),
        lambda source: "[TOOL_CALLS]" in source,
        opening="[TOOL_CALLS][",
        between=", ",
        closing="]",
        make_id=mistral_id,
        special=True,
    ),
    Dialect("glm45", _glm45, _tagged_call, lambda source: "<arg_key>" in source, between="\n"),
    Dialect(
        "hermes",
        _hermes,
        lambda tool: _object_call(tool, "arguments", "<tool_call>\n", "\n</tool_call>"),
        lambda source: "<tool_call>" in source,
        between="\n",
    ),
    Dialect(
        "llama3",
        _llama,
        lambda tool: _object_call(tool, "parameters"),
        lambda source: "<|python_tag|>" in source or ("ipython" in source and '"parameters"' in source),
        between="; ",
        special=True,
    ),
    Dialect(
        "glm4",
        _glm4,
        lambda tool: f"{_text(tool.name + chr(10))} {arguments_rule(tool)}",
        lambda source: "<|observation|>" in source,
        between="\n",
    ),
)


def find_dialect(template: str, name: str | None = None) -> Dialect | None:
    """The one of that name, else the first that the chat template speaks."""
    if name is not None:
        return next(dialect for dialect in DIALECTS if dialect.name == name)
    return next((dialect for dialect in DIALECTS if dialect.detects(template)), None)
