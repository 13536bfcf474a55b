"""What parsers of tool calls share: where deltas are gathered, and the reading of JSON in pieces."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from slipstream.server.chat_parts import MessageDelta, ToolCallDelta

IdMaker = Callable[[], str]


def openai_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """Nine letters or digits, which Mistral's templates insist on."""
    return secrets.token_hex(5)[:9]


class Status(Enum):
    MORE = "more"  # the character belongs to the call, which goes on
    DONE = "done"  # the character is the call's last
    FAILED = "failed"  # this is no call


class Gathered:
    """Collects what a message gains until it is taken. Calls are numbered over the whole message."""

    def __init__(self, names: frozenset[str], make_id: IdMaker) -> None:
        self.names = names
        self._make_id = make_id
        self._content: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self.num_calls = 0

    def text(self, text: str) -> None:
        self._content.append(text)

    def begin(self, name: str) -> None:
        self._calls.append(ToolCallDelta(self.num_calls, "", self._make_id(), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        last = self._calls[-1] if self._calls else None
        index = self.num_calls - 1
        if last is None:
            self._calls.append(ToolCallDelta(index, text))
        else:
            self._calls[-1] = ToolCallDelta(index, last.arguments + text, last.id, last.name)

    def take(self) -> MessageDelta:
        delta = MessageDelta("".join(self._content), "", tuple(self._calls))
        self._content, self._calls = [], []
        return delta


class CallReader(Protocol):
    """Reads one call, character by character. Once it has begun the call it never fails."""

    def feed(self, char: str, out: Gathered) -> Status: ...


class ValueEnd:
    """Finds the end of one JSON value that is fed from its first character on, which is no whitespace."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar: bool | None = None

    def feed(self, char: str) -> bool | None:
        """True: the value ends with this character; None: it ended before it; False: it goes on."""
        if self._scalar is None:
            self._scalar = char not in '{["'
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                return self._depth == 0
            return False
        if self._scalar and (char in ",}]" or char.isspace()):
            return None
        if char == '"' and not self._scalar:
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False


class JsonCall:
    """One call as an object with the tool's name and its arguments, in either order: {"name": ..., "arguments": ...}.

    Arguments go out as they come. Arguments written as a string that holds JSON are unpacked. Other keys are passed
    over. It fails where the object is not JSON or names no tool of the request.
    """

    def __init__(self, argument_keys: tuple[str, ...] = ("arguments", "parameters")) -> None:
        self._argument_keys = argument_keys
        self._place = "start"
        self._key = ""
        self._value = ""
        self._end = ValueEnd()
        self._begun = self._given = False
        self._kept: str | None = None  # arguments that came before the name

    def feed(self, char: str, out: Gathered) -> Status:
        if self._place == "value":
            return self._feed_value(char, out)
        if self._place == "key":
            self._key += char
            if char == '"' and not self._key[:-1].endswith("\\"):
                self._key, self._place = self._key[:-1], "colon"
            return Status.MORE
        if char.isspace():
            return Status.MORE
        if self._place == "start" and char == "{":
            self._place = "keys"
        elif self._place == "keys" and char == '"':
            self._place, self._key = "key", ""
        elif self._place == "colon" and char == ":":
            self._place, self._value, self._end = "before value", "", ValueEnd()
        elif self._place == "before value":
            self._place = "value"
            return self._feed_value(char, out)
        elif self._place == "keys" and char == "}":
            return self._close(out)
        elif not (self._place == "keys" and char == ","):
            return self._fail()
        return Status.MORE

    def _feed_value(self, char: str, out: Gathered) -> Status:
        ended = self._end.feed(char)
        if ended is not None:
            self._value += char
            if self._streams():
                self._given = True
                out.arguments(char)
        if ended is False:
            return Status.MORE
        self._place = "keys"
        if not self._finish_value(out):
            return self._fail()
        return self.feed(char, out) if ended is None else Status.MORE

    def _streams(self) -> bool:
        return self._begun and self._key in self._argument_keys and self._value[:1] == "{"

    def _finish_value(self, out: Gathered) -> bool:
        if self._key == "name" and not self._begun:
            name = _loads(self._value)
            if not isinstance(name, str) or name not in out.names:
                return False
            out.begin(name)
            self._begun = True
            if self._kept is not None:
                self._give(self._kept, out)
        elif self._key in self._argument_keys and not self._given:
            if self._begun:
                self._give(self._value, out)
            else:
                self._kept = self._value
        return True

    def _give(self, value: str, out: Gathered) -> None:
        inner = _loads(value)
        if isinstance(inner, str) and isinstance(_loads(inner), dict):
            value = inner
        out.arguments("{}" if value == "null" else value)
        self._given = True

    def _close(self, out: Gathered) -> Status:
        if not self._begun:
            return Status.FAILED
        if not self._given:
            out.arguments("{}")
        return Status.DONE

    def _fail(self) -> Status:
        """What is broken behind the name ends the call."""
        return Status.DONE if self._begun else Status.FAILED


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
