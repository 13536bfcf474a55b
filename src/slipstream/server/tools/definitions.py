"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.server.errors import BadRequestError, UnsupportedError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    parameters: Mapping[str, Any]  # a JSON schema
    field: str = "tools"  # where the request has the schema

    def as_json(self) -> dict[str, Any]:
        """As chat templates take it."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """mode "required": at least one call of any of `tools`; "named": one call of the only one in `tools`."""

    mode: Literal["none", "auto", "required", "named"]
    tools: tuple[Tool, ...] = ()
    parallel: bool = True

    @property
    def enforced(self) -> bool:
        return self.mode in ("required", "named")


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """From the form of chat completions. Raises BadRequestError that names the tool."""
    check_count(tools)
    found = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    names = [tool.name for tool in found]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadRequestError(f"the name {name!r} is used twice.", param=f"tools[{index}].function.name")
    return found


def check_count(tools: Sequence[object] | None) -> None:
    """Raises BadRequestError for more than MAX_TOOLS."""
    if tools is not None and len(tools) > MAX_TOOLS:
        raise BadRequestError(f"at most {MAX_TOOLS} tools, got {len(tools)}.", param="tools")


def read_choice(choice: object, tools: tuple[Tool, ...], *, parallel: bool) -> ToolChoice:
    """From the form of chat completions: a word, {"type": "function", "function": {"name": ...}}, or
    {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}} with such functions."""
    if choice in (None, "auto"):
        return ToolChoice("auto" if tools else "none", tools, parallel)
    if choice == "none":
        return ToolChoice("none", (), parallel)
    if not tools:
        raise BadRequestError("needs tools.", param="tool_choice")
    if choice == "required":
        return ToolChoice("required", tools, parallel)
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return ToolChoice("named", (_named(choice, tools, "tool_choice"),), False)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), tools, parallel)
    raise BadRequestError(
        f'must be "none", "auto", "required", name a function or list allowed_tools, got {choice!r:.80}.',
        param="tool_choice",
    )


def _allowed(listed: object, tools: tuple[Tool, ...], parallel: bool) -> ToolChoice:
    where = "tool_choice.allowed_tools"
    if not isinstance(listed, Mapping):
        raise BadRequestError("must be an object with mode and tools.", param=where)
    mode, allowed = listed.get("mode"), listed.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequestError(f'must be "auto" or "required", got {mode!r:.80}.', param=f"{where}.mode")
    if not isinstance(allowed, list) or not allowed:
        raise BadRequestError("must be a list of at least one function.", param=f"{where}.tools")
    if len(allowed) > MAX_TOOLS:
        raise BadRequestError(f"at most {MAX_TOOLS} tools, got {len(allowed)}.", param=f"{where}.tools")
    found = [_named(each, tools, f"{where}.tools[{index}]") for index, each in enumerate(allowed)]
    return ToolChoice(mode, tuple(tool for tool in tools if tool in found), parallel)


def _named(choice: object, tools: tuple[Tool, ...], where: str) -> Tool:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise BadRequestError(f"names {name!r:.80}, which is no tool of the request.", param=where)


def _read_tool(tool: Mapping[str, Any], where: str) -> Tool:
    if tool.get("type") != "function":
        raise UnsupportedError(f"type {tool.get('type')!r:.80} is not supported.", where=where, fix="Use function.")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise BadRequestError("must be an object.", param=f"{where}.function")
    return make_tool(function.get("name"), function.get("description"), function.get("parameters"), f"{where}.function")


def make_tool(
    name: object, description: object, parameters: object, where: str, *, schema_field: str = "parameters"
) -> Tool:
    """Raises BadRequestError that names the field. Without parameters the tool takes none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequestError(f"must be 1 to 64 letters, digits, _, . or -, got {name!r:.80}.", param=f"{where}.name")
    if description is not None and not isinstance(description, str):
        raise BadRequestError("must be a string.", param=f"{where}.description")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise BadRequestError("must be a JSON schema.", param=f"{where}.{schema_field}")
    return Tool(name, description, parameters, f"{where}.{schema_field}")
