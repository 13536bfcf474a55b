"""Items of the responses API as messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.errors import BadRequestError, UnsupportedError
from slipstream.server.structured import schema_format
from slipstream.server.text_parts import string_field, text_of
from slipstream.server.tools.definitions import Tool, check_count, make_tool

Message = dict[str, Any]

_TEXT_PARTS = ("input_text", "output_text", "text")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def messages_of(items: str | Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raises BadRequestError or UnsupportedError that names the item. Calls join the assistant's message before them.

    Reasoning items are left out: templates drop the reasoning of earlier turns.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Message] = []
    for index, item in enumerate(items):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[Message], item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise BadRequestError(f"must be one of {', '.join(_ROLES)}.", param=f"{where}.role")
        messages.append({"role": role, "content": text_of(item.get("content"), f"{where}.content", _TEXT_PARTS)})
    elif kind == "function_call":
        function = {"name": string_field(item, "name", where), "arguments": string_field(item, "arguments", where)}
        call = {"id": string_field(item, "call_id", where), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = text_of(item.get("output"), f"{where}.output", _TEXT_PARTS)
        messages.append({"role": "tool", "tool_call_id": string_field(item, "call_id", where), "content": output})
    elif kind != "reasoning":
        raise UnsupportedError(f"items of type {kind!r:.80} are not supported.", where=where)


def tools_of(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """From the flat form of this API. Raises UnsupportedError for tools that OpenAI runs itself."""
    check_count(tools)
    found: list[Tool] = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.get("type") != "function":
            raise UnsupportedError(f"type {tool.get('type')!r:.80} is not supported.", where=where, fix="Use function.")
        made = make_tool(tool.get("name"), tool.get("description"), tool.get("parameters"), where)
        if any(made.name == other.name for other in found):
            raise BadRequestError(f"the name {made.name!r} is used twice.", param=f"{where}.name")
        found.append(made)
    return tuple(found)


def choice_of(choice: object) -> object:
    """In the form of chat completions."""
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools" and "allowed_tools" not in choice:
        listed = choice.get("tools")
        tools = [choice_of(each) for each in listed] if isinstance(listed, list) else listed
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return choice


def grammar_of_text(text: Mapping[str, Any] | None) -> GrammarSpec | None:
    """From {"format": {...}}. Raises BadRequestError."""
    for name in text or ():
        if name not in ("format", "verbosity"):
            raise BadRequestError("is not a field that this server knows.", param=f"text.{name}")
    form = (text or {}).get("format")
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec.json_object()
    if kind == "json_schema":
        return schema_format(form, "text.format")
    raise BadRequestError("must be text, json_object or json_schema.", param="text.format.type")
