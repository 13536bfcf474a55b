"""What passes as a conversation."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from slipstream.errors import InvalidParamsError
from slipstream.text.messages import normalize_messages, plain_data

pytestmark = pytest.mark.fast


class Role(str, Enum):  # noqa: UP042 (the old way is still in use)
    USER = "user"


def test_what_contains_itself_or_is_too_deep_is_refused() -> None:
    cycle: dict[str, Any] = {"role": "user", "content": "hi"}
    cycle["again"] = [cycle]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for message in (cycle, {"role": "user", "content": "hi", "more": deep}):
        with pytest.raises(InvalidParamsError, match=r"^messages\[0\]: is nested too deeply, or contains itself"):
            normalize_messages([message])


def test_copies_of_plain_data() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": (1, 2.5, None, True)}}}
    given: list[Any] = [
        MappingProxyType({"role": Role.USER, "content": "hi"}),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "name": "f"},
    ]
    result = normalize_messages(given)
    call_copy = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, None, True]}}}
    assert result == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call_copy]},
        {"role": "tool", "content": "", "name": "f"},
    ]
    assert type(result[0]["role"]) is str
    assert result[1]["tool_calls"] is not given[1]["tool_calls"]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"type": "text", "text": ""}]
    assert normalize_messages([{"role": "user", "content": parts}])[0]["content"] == "one\ntwo\n"
    assert normalize_messages([{"role": "user", "content": parts[:1]}])[0]["content"] == "one"
    assert normalize_messages([{"role": "user", "content": []}])[0]["content"] == ""


def test_scalars_lose_their_methods() -> None:
    assert type(plain_data(np.float64(1.5), "x")) is float


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: is empty. Give at least one message."),
        ("hi", "messages: must be a list of messages, not str"),
        ({"role": "user"}, "messages: must be a list of messages, not dict"),
        (iter([]), "messages: must be a list of messages, not list_iterator"),
        (["hi"], r"messages\[0\]: must be a mapping with role and content, not str"),
        ([{"content": "hi"}], r"messages\[0\]: has no role"),
        ([{"role": 3, "content": "hi"}], r"messages\[0\]: role must be a non-empty string, not 3"),
        ([{"role": "", "content": "hi"}], r"messages\[0\]: role must be a non-empty string, not ''"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], r"messages\[1\]: has no content"),
        ([{"role": "user", "content": 5}], r"messages\[0\]: content must be a string, .* not int"),
        ([{"role": "user", "content": {"a": 1}}], r"messages\[0\]: content must be a string, .* not dict"),
        ([{"role": "user", "content": [3]}], r"messages\[0\].content\[0\]: must be a text part, not int"),
        (
            [{"role": "user", "content": ["a", {"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[1\]: part type 'image_url' is not supported",
        ),
        ([{"role": "user", "content": [{"text": "a"}]}], "part type None is not supported"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text must be a string, not NoneType"),
        ([{"role": "user", "content": "a", "x": object()}], r"messages\[0\].x: must be JSON-like data, not object"),
        ([{"role": "user", "content": "a", 1: 2}], r"messages\[0\]: has a key that is no string \(1\)"),
    ],
)
def test_what_is_refused(messages: Any, message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message):
        normalize_messages(messages)
