"""Anthropic's content blocks and tools as messages and tools of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.errors import BadRequestError, UnsupportedError
from slipstream.server.schema.messages import AnthropicMessage, CountTokensRequest
from slipstream.server.structured import schema_format
from slipstream.server.text_parts import string_field, text_of
from slipstream.server.tools.definitions import Tool, ToolChoice, check_count, make_tool, read_choice

Message = dict[str, Any]

_TEXT = ("text",)


def messages_of(body: CountTokensRequest) -> list[Message]:
    """Raises BadRequestError or UnsupportedError that names the block."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": text_of(body.system, "system", _TEXT, part="block")})
    for index, message in enumerate(body.messages):
        messages += _plain(message, f"messages[{index}].content")
    return messages


def choice_of(body: CountTokensRequest) -> ToolChoice:
    """Raises BadRequestError or UnsupportedError."""
    tools = _tools(body.tools)
    asked = body.tool_choice or {"type": "auto"}
    parallel = asked.get("disable_parallel_tool_use") is not True
    kind = asked.get("type")
    if kind == "tool":
        named = {"type": "function", "function": {"name": asked.get("name")}}
        return read_choice(named, tools, parallel=parallel)
    words = {"auto": "auto", "any": "required", "none": "none"}
    if kind not in words:
        raise BadRequestError("must be auto, any, tool or none.", param="tool_choice.type")
    return read_choice(words[kind], tools, parallel=parallel)


def grammar_of(body: CountTokensRequest) -> GrammarSpec | None:
    """From output_config.format. Raises BadRequestError."""
    for name in body.output_config or ():
        if name not in ("format", "effort"):
            raise BadRequestError("is not a field that this server knows.", param=f"output_config.{name}")
    form = (body.output_config or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        raise BadRequestError("must be json_schema.", param="output_config.format.type")
    return schema_format(form, "output_config.format")


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    check_count(tools)
    found: list[Tool] = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.get("type") not in (None, "custom"):
            raise UnsupportedError(f"type {tool.get('type')!r:.80} is not supported.", where=where, fix="Use custom.")
        made = make_tool(
            tool.get("name"), tool.get("description"), tool.get("input_schema"), where, schema_field="input_schema"
        )
        if any(made.name == other.name for other in found):
            raise BadRequestError(f"the name {made.name!r} is used twice.", param=f"{where}.name")
        found.append(made)
    return tuple(found)


def _plain(message: AnthropicMessage, where: str) -> list[Message]:
    """Results of tools become messages of their own, before what else the message says."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    calls: list[Message] = []
    results: list[Message] = []
    for index, block in enumerate(message.content):
        at, kind = f"{where}[{index}]", block.get("type")
        if kind == "text":
            texts.append(string_field(block, "text", at))
        elif kind == "tool_use" and message.role == "assistant":
            function = {"name": string_field(block, "name", at), "arguments": _arguments(block.get("input"), at)}
            calls.append({"id": string_field(block, "id", at), "type": "function", "function": function})
        elif kind == "tool_result" and message.role == "user":
            content = text_of(block.get("content") or "", f"{at}.content", _TEXT, part="block")
            text = f"Error: {content}" if block.get("is_error") is True else content
            results.append({"role": "tool", "tool_call_id": string_field(block, "tool_use_id", at), "content": text})
        elif kind not in ("thinking", "redacted_thinking"):  # templates drop the reasoning of earlier turns
            raise UnsupportedError(f"blocks of type {kind!r:.80} are not supported here.", where=at)
    said: list[Message] = []
    if texts or calls or not results:
        said = [{"role": message.role, "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}]
    return [*results, *said]


def _arguments(value: object, where: str) -> str:
    if not isinstance(value, Mapping):
        raise BadRequestError("must be an object.", param=f"{where}.input")
    return json.dumps(value, ensure_ascii=False)
