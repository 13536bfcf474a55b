"""Chat messages to token ids, with control tokens only where the template writes them.

A message that spells `<|im_end|>` must not end its turn. Templates join messages and markup to one text, in which
nothing tells them apart any more, so before rendering every spelling inside the messages is broken in two by a mark: a
Unicode noncharacter, which stands for nothing and occurs in no text. What the tokenizer then still finds as a
control token is the template's; the text between is encoded literally, without the marks. Messages that spell no
control token (nearly all) are rendered and encoded as they are.

Only *special* tokens are broken up. Others that were added to a vocabulary (newlines in Gemma, `<think>` in Qwen3)
carry text, and models were trained to see them in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from slipstream.errors import InvalidParamsError
from slipstream.text.chat_template import ChatTemplate
from slipstream.text.messages import plain_data
from slipstream.text.tokenizer import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDEF)]  # the tokenizer uses the one behind


def encode_messages(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
    check: Callable[[str], None] = lambda text: None,
) -> list[int]:
    """Token ids of the rendered conversation, with one BOS where the tokenizer has one.

    `check` is given the rendered text before it is cut into tokens. Raises what it raises, InvalidParamsError for
    messages that are none, and ChatTemplateError where the template refuses them.
    """
    parts: Any = plain_data([list(messages), None if tools is None else list(tools), dict(extra or {})], "messages")
    spelled = _spellings(tokenizer)
    mark = None
    if spelled is not None and _any_text(parts, spelled):
        mark = _unused_mark(parts, template.source)
        parts = _map_text(parts, lambda text: spelled.sub(lambda found: found[0] + mark, text))
    checked_messages, checked_tools, names = parts
    rendered = template.render(
        checked_messages, tools=checked_tools, add_generation_prompt=add_generation_prompt, **names
    )
    if mark is None:
        check(rendered)
        return tokenizer.encode_chat(rendered)
    marked = rendered.replace(f"\\u{ord(mark):04x}", mark)  # where a template writes JSON in ASCII
    check(marked.replace(mark, ""))
    return tokenizer.encode_chat(marked, mark=mark)


@lru_cache(maxsize=8)
def _spellings(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Matches the first character of every special token's spelling, so that overlapping ones are all found."""
    names = sorted({name for name in map(tokenizer.id_to_token, tokenizer.special_ids) if name and len(name) > 1})
    return re.compile("|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)) if names else None


def _any_text(value: Any, pattern: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return pattern.search(value) is not None
    if isinstance(value, dict):
        return any(_any_text(item, pattern) for pair in value.items() for item in pair)
    return isinstance(value, list) and any(_any_text(item, pattern) for item in value)


def _map_text(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_text(item, change) for key, item in value.items()}
    return [_map_text(item, change) for item in value] if isinstance(value, list) else value


def _unused_mark(parts: Any, source: str) -> str:
    for mark in _NONCHARACTERS:
        if mark not in source and not _any_text(parts, re.compile(re.escape(mark))):
            return mark
    raise InvalidParamsError("the messages contain every noncharacter of Unicode.", where="messages")
