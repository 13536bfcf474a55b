"""Prompts from a file: one per line as text, or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import UsageError

DEFAULT_DOMAIN = "data"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked, as messages (role, content) of which the last is the user's, and of what kind it is."""

    messages: tuple[tuple[str, str], ...]
    domain: str

    @classmethod
    def of(cls, text: str, domain: str = DEFAULT_DOMAIN) -> Prompt:
        return cls((("user", text),), domain)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, in order; empty lines are skipped.

    In a file whose name ends with .jsonl every line is an object with one of `prompt` (text), `turns` (texts, of which
    the first is taken) and `messages` (role and content, the assistant's at the end being left out); `domain` or
    `category` names its kind in the report, and other names are not looked at. In any other file a line is a prompt.

    Raises UsageError naming file and line for what is none of these, and for a file without prompts.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    parse = _from_json if path.suffix == ".jsonl" else _from_text
    found = [parse(text, f"{path} line {number}") for number, text in _lines(raw, path)]
    if not found:
        raise UsageError("has no prompts.", where=str(path))
    return found


def _lines(raw: bytes, path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(raw.split(b"\n"), 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UsageError(f"is not valid UTF-8 (byte {error.start}).", where=f"{path} line {number}") from error
        if text:
            yield number, text


def _from_text(text: str, where: str) -> Prompt:
    return Prompt.of(text)


def _from_json(text: str, where: str) -> Prompt:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not valid JSON: {error}.", where=where) from error
    if not isinstance(entry, dict):
        raise UsageError(f"expected an object, not {type(entry).__name__}.", where=where)
    domain = entry.get("domain", entry.get("category", DEFAULT_DOMAIN))
    if not isinstance(domain, str) or not domain:
        raise UsageError("domain or category must be a text that is not empty.", where=where)
    given = [name for name in ("prompt", "turns", "messages") if name in entry]
    if len(given) != 1:
        raise UsageError("exactly one of 'prompt', 'turns' and 'messages' is needed.", where=where)
    value = entry[given[0]]
    if given == ["messages"]:
        return Prompt(_messages(value, where), domain)
    if given == ["turns"]:
        if not isinstance(value, list) or not value:
            raise UsageError("turns must be a list of texts that is not empty.", where=where)
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{given[0]} must hold a text that is not empty.", where=where)
    return Prompt.of(value, domain)


def _messages(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list):
        raise UsageError("messages must be a list.", where=where)
    found: list[tuple[str, str]] = []
    for each in value:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise UsageError(
                "a message has a role (system, user or assistant) and a content, which is a text.", where=where
            )
        found.append((role, content))
    while found and found[-1][0] == "assistant":
        found.pop()
    if not found or found[-1][0] != "user":
        raise UsageError("messages must end with one of the user, the assistant's at the end aside.", where=where)
    return tuple(found)
