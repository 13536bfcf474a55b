"""What tools change about a chat request: the grammar, the rendering, the parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams
from slipstream.server.chat_parts import OutputParser, PlainText
from slipstream.server.errors import BadRequestError, UnsupportedError
from slipstream.server.model import ServedModel
from slipstream.server.options import TOOL_PARSERS
from slipstream.server.tools.definitions import Tool, ToolChoice
from slipstream.server.tools.dialects import Dialect, find_dialect
from slipstream.text.messages import content_text


@dataclass(frozen=True, slots=True)
class ToolPlan:
    params: SamplingParams
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None  # for the chat template
    parser: Callable[[], OutputParser]


def plan_tools(
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    choice: ToolChoice,
    grammar: GrammarSpec | None,
    *,
    model: ServedModel,
    tool_parser: str | None,
) -> ToolPlan:
    """Raises UnsupportedError where the model's chat template has no form for calls, and BadRequestError for a
    form of the answer beside tools, which would forbid to call them."""
    rendered = [_with_decoded_arguments(message) for message in messages]
    source = model.tokenizer.chat_templates.get("tool_use") or model.template.source
    knows_tools = "tools" in source
    if not knows_tools:
        rendered = [_written_out(message, f"messages[{index}]") for index, message in enumerate(rendered)]
    if choice.mode == "none":
        return ToolPlan(replace(params, grammar=grammar), rendered, None, PlainText)
    if grammar is not None:
        raise BadRequestError(
            "does not go together with tools that may be called.",
            param="response_format",
            fix='Set tool_choice "none".',
        )
    dialect = _dialect(source, tool_parser)
    tools: list[dict[str, Any]] | None = [tool.as_json() for tool in choice.tools]
    if not knows_tools:
        rendered, tools = _with_description(rendered, choice.tools), None
    return ToolPlan(
        replace(
            params,
            grammar=dialect.grammar(choice) if choice.enforced else None,
            skip_special_tokens=params.skip_special_tokens and not dialect.special,
        ),
        rendered,
        tools,
        lambda: dialect.new_parser(choice),
    )


def _dialect(source: str, tool_parser: str | None) -> Dialect:
    dialect = find_dialect(source, tool_parser)
    if dialect is None:
        raise UnsupportedError(
            "the model's chat template has no form for tool calls.",
            where="tools",
            fix=f"With --tool-parser ({', '.join(TOOL_PARSERS)}) the server describes tools in a message.",
        )
    return dialect


def _with_decoded_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates want the arguments of earlier calls as objects, clients send them as JSON text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_decoded(call) for call in calls]}


def _decoded(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _with_description(messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """For a template that knows no tools: they are described in the system message, in Hermes' form."""
    described = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
    text = (
        "You can call these functions. Their signatures, as JSON:\n"
        f"<tools>\n{described}\n</tools>\n"
        "To call one, answer with a JSON object in these tags and nothing else:\n"
        '<tool_call>\n{"name": "the function", "arguments": {"the argument": "its value"}}\n</tool_call>'
    )
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{content_text(messages[0].get('content'), 'messages[0]') or ''}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _written_out(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Calls and results as text, for a template that would leave them out."""
    if message.get("role") == "tool":
        result = content_text(message.get("content"), where) or ""
        return {"role": "user", "content": f"<tool_response>\n{result}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written_call(call) for call in calls]
    said = content_text(message.get("content"), where)
    content = "\n".join([*([said] if said else []), *written])
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _written_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    named = function if isinstance(function, Mapping) else {}
    call_json = json.dumps({"name": named.get("name"), "arguments": named.get("arguments")}, ensure_ascii=False)
    return f"<tool_call>\n{call_json}\n</tool_call>"
