"""Chat messages, checked before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.errors import InvalidParamsError


def normalize_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Copies of `messages` made of plain dicts and lists, with every `content` a string and null fields left out.

    A message is a mapping with a string `role` and, as `content`, a string, None, or a list of text parts
    (`{"type": "text", "text": ...}` or plain strings), which are joined by newlines. Other fields (`tool_calls`,
    `name`, `tool_call_id`, ...) pass through. Raises `InvalidParamsError` that names the message by index.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidParamsError(f"must be a list of messages, not {type(messages).__name__}.", where="messages")
    if not messages:
        raise InvalidParamsError("is empty.", where="messages", fix="Give at least one message.")
    return [_normalize(message, f"messages[{index}]") for index, message in enumerate(messages)]


def plain_data(value: object, where: str) -> object:
    """A deep copy of JSON-like data. Templates are untrusted code, so no other object may reach them."""
    try:
        return _plain(value, where)
    except RecursionError as error:
        raise InvalidParamsError("is nested too deeply, or contains itself.", where=where) from error


def plain_tools(tools: object) -> object:
    """A deep copy of a list of tools; their own form is the template's business."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InvalidParamsError(f"must be a list of tools, not {type(tools).__name__}.", where="tools")
    return plain_data(list(tools), "tools")


def _plain(value: object, where: str) -> object:
    if value is None or type(value) in (str, bool, int, float):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # Subclasses (enumerations, numpy scalars) may carry methods: keep the plain value.
            return kind.__str__(value) if kind is str else kind(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidParamsError(f"has a key that is no string ({key!r}).", where=where)
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise InvalidParamsError(f"must be JSON-like data, not {type(value).__name__}.", where=where)


def _normalize(message: object, where: str) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidParamsError(f"must be a mapping with role and content, not {type(message).__name__}.", where=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        what = "has no role." if role is None else f"role must be a non-empty string, not {role!r}."
        raise InvalidParamsError(what, where=where, fix='Use "system", "user", "assistant" or "tool".')
    result = plain_data(message, where)
    assert isinstance(result, dict)
    if "content" in result:
        result["content"] = content_text(result["content"], where)
    elif not result.get("tool_calls"):
        raise InvalidParamsError("has no content.", where=where)
    # Templates handle a missing field, but many print a null one as "None".
    return {key: value for key, value in result.items() if value is not None}


def content_text(content: object, where: str) -> str | None:
    """The text of a message's `content`. Raises `InvalidParamsError` for anything but text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidParamsError(
            f"content must be a string, a list of text parts or null, not {type(content).__name__}.", where=where
        )
    return "\n".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise InvalidParamsError(f"must be a text part, not {type(part).__name__}.", where=where)
    kind = part.get("type")
    if kind != "text":
        raise InvalidParamsError(f"part type {kind!r} is not supported.", where=where, fix='Only "text" is.')
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParamsError(f"text must be a string, not {type(text).__name__}.", where=where)
    return text
