"""Content that is a text or a list of parts with text, as the APIs other than chat completions write it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slipstream.server.errors import BadRequestError, UnsupportedError


def text_of(content: object, where: str, kinds: Collection[str], *, part: str = "part") -> str:
    """The string itself, or the texts of the list's parts, which must be of one of these types, one per line.

    `part`: what the API calls one. Raises BadRequestError or UnsupportedError that names the part.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"must be a string or a list of text {part}s.", param=where)
    texts = []
    for index, each in enumerate(content):
        at = f"{where}[{index}]"
        kind = each.get("type") if isinstance(each, Mapping) else each
        if not isinstance(each, Mapping) or kind not in kinds:
            raise UnsupportedError(
                f"{part}s of type {kind!r:.80} are not supported here.", where=at, fix="Only text is."
            )
        texts.append(string_field(each, "text", at))
    return "\n".join(texts)


def string_field(item: Mapping[str, Any], name: str, where: str) -> str:
    """Raises BadRequestError if it is not a string."""
    value = item.get(name)
    if not isinstance(value, str):
        raise BadRequestError("must be a string.", param=f"{where}.{name}")
    return value
