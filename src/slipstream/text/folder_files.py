"""The small JSON files beside `tokenizer.json` in a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slipstream.errors import TokenizerError


def read_json(path: Path) -> Mapping[str, object]:
    """The object in `path`, empty if there is no such file."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise TokenizerError(f"is not valid JSON: {error.msg} (line {error.lineno}).", where=str(path)) from error
    except (ValueError, RecursionError) as error:  # thousands of digits, thousands of brackets
        raise TokenizerError(f"is not JSON that anything can read: {error}.", where=str(path)) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"must hold an object, not {type(value).__name__}.", where=str(path))
    return value


def read_text(path: Path) -> str | None:
    """The text in `path`, or None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise TokenizerError(f"is not UTF-8 (byte {error.start}).", where=str(path)) from error
    except OSError as error:
        raise TokenizerError(f"cannot be read: {error.strerror}.", where=str(path)) from error


def token_text(value: object, where: str) -> str | None:
    """A token as configuration files write it: a string, or an object with its `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise TokenizerError(f"must be a token, not {value!r}.", where=where)


def token_ids(value: object, where: str) -> list[int]:
    """One id, a list of ids, or none."""
    values: list[object] = value if isinstance(value, list) else [] if value is None else [value]
    ids = [item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
    if len(ids) != len(values):
        raise TokenizerError(f"must be a token id or a list of them, not {value!r}.", where=where)
    return ids


def chat_templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Templates by name. `chat_template.jinja` and `additional_chat_templates/NAME.jinja` go before
    `chat_template.json`, which goes before the `chat_template` of `tokenizer_config.json`."""
    templates = _named(config.get("chat_template"), str(folder / "tokenizer_config.json"))
    file = folder / "chat_template.json"
    templates.update(_named(read_json(file).get("chat_template"), str(file)))
    default = read_text(folder / "chat_template.jinja")
    if default is not None:
        templates["default"] = default
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path) or ""
    return templates


def _named(value: object, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    pairs: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        pairs = [(item.get("name"), item.get("template")) for item in value]
    templates = {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}
    if len(templates) != len(pairs) or not pairs:
        raise TokenizerError("chat_template must be a string or a list of named strings.", where=where)
    return templates
