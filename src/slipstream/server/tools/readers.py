"""Readers of calls that are more than one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipstream.server.tools.calls import Gathered, JsonCall, Status, ValueEnd

_ARGS = "[ARGS]"


class NamedJson:
    """A tool's name and then its arguments as one JSON object: name{...}, name[ARGS]{...} or a line of each.

    With `line` the name is a whole line, which only a tool of the request may be.
    """

    def __init__(self, *, line: bool = False) -> None:
        self._line = line
        self._name = ""
        self._end: ValueEnd | None = None

    def feed(self, char: str, out: Gathered) -> Status:
        if self._end is not None:
            ended = self._end.feed(char)
            out.arguments(char)
            return Status.DONE if ended else Status.MORE
        if char != "{":
            self._name += char
            return Status.MORE if self._may_be_name(out) else Status.FAILED
        name = self._name.strip().removesuffix(_ARGS).rstrip()
        if name not in out.names or (self._line and "\n" not in self._name.lstrip()):
            return Status.FAILED
        out.begin(name)
        self._end = ValueEnd()
        self._end.feed(char)
        out.arguments(char)
        return Status.MORE

    def _may_be_name(self, out: Gathered) -> bool:
        text = self._name.lstrip()
        return not text or any(name.startswith(text) or _follows(text, name) for name in out.names)


def _follows(text: str, name: str) -> bool:
    """Whether `text` is the name and then what may stand between it and its arguments."""
    if not text.startswith(name):
        return False
    rest = text[len(name) :].strip()
    return _ARGS.startswith(rest)


class MistralCalls:
    """What follows [TOOL_CALLS]: an array of objects, or a name and its arguments."""

    def __init__(self) -> None:
        self._array: bool | None = None
        self._call: JsonCall | NamedJson | None = None
        self._any = False

    def feed(self, char: str, out: Gathered) -> Status:
        if self._array is None:
            if char.isspace():
                return Status.MORE
            self._array = char == "["
            self._call = None if self._array else JsonCall() if char == "{" else NamedJson()
            return Status.MORE if self._call is None else self._call.feed(char, out)
        if self._call is not None:
            status = self._call.feed(char, out)
            if not self._array or (status is Status.FAILED and not self._any):
                return status
            if status is not Status.MORE:
                self._call, self._any = None, True
            return Status.DONE if status is Status.FAILED else Status.MORE
        if char == "{":
            self._call = JsonCall()
            return self._call.feed(char, out)
        if char.isspace() or (char == "," and self._any):
            return Status.MORE
        return Status.DONE if self._any else Status.FAILED


class TaggedArguments:
    """GLM-4.5: a name, then <arg_key>k</arg_key><arg_value>v</arg_value> for each argument, then </tool_call>.

    A value is text where the tool's schema says string, and otherwise JSON, or text if it is none. Each argument
    goes out when it is whole.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas
        self._name: str | None = None
        self._text = ""
        self._key: str | None = None
        self._num = 0

    def feed(self, char: str, out: Gathered) -> Status:
        self._text += char
        if self._name is None:
            return self._read_name(char, out)
        if char != ">":
            return Status.MORE
        if self._key is None and self._text.endswith("</arg_key>"):
            self._key = self._text.removesuffix("</arg_key>").rpartition("<arg_key>")[2].strip()
            self._text = ""
        elif self._key is not None and self._text.endswith("</arg_value>"):
            value = self._text.removesuffix("</arg_value>").partition("<arg_value>")[2]
            out.arguments(("{" if self._num == 0 else ", ") + json.dumps(self._key) + ": " + self._as_json(value))
            self._num, self._key, self._text = self._num + 1, None, ""
        elif self._key is None and self._text.endswith("</tool_call>"):
            out.arguments("}" if self._num else "{}")
            return Status.DONE
        return Status.MORE

    def _read_name(self, char: str, out: Gathered) -> Status:
        head = self._text.lstrip()
        name = head.rstrip("\n").partition("<")[0].strip()
        if not head or (char not in "\n<"):
            known = not head or any(each.startswith(name) for each in out.names)
            return Status.MORE if known else Status.FAILED
        if name not in out.names:
            return Status.FAILED
        self._name = name
        self._text = "<" if char == "<" else ""
        out.begin(name)
        return Status.MORE

    def _as_json(self, value: str) -> str:
        assert self._name is not None
        assert self._key is not None
        properties = self._schemas.get(self._name, {}).get("properties")
        schema = properties.get(self._key) if isinstance(properties, Mapping) else None
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return json.dumps(value, ensure_ascii=False)
        try:
            return json.dumps(json.loads(value), ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps(value, ensure_ascii=False)
