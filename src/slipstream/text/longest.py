"""How much text one token stands for at most, so that a text that is too long for any context is known unread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import models

from slipstream.text.pieces import BYTE_ALPHABET

_COMPOSED = 4
"""Characters that NFC joins to one: the longest canonical decompositions have four (Unicode Standard Annex 15)."""

_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})


def characters_per_token(backend: tokenizers.Tokenizer) -> int | None:
    """Characters of text that no token exceeds; None where a token may stand for any number of them.

    That is so where unknown characters in a row become one token, where white space beside a token belongs to it, and
    where the normalizer or the pre-tokenizer drops characters or does what is not known here. A byte-level piece has
    one character for each byte, so its length bounds its characters too.
    """
    joined = _joined_by(backend.normalizer)
    if joined is None or not _keeps_text(backend.pre_tokenizer) or not _knows_every_character(backend):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    size = backend.get_vocab_size(with_added_tokens=True)
    added = backend.get_added_tokens_decoder().values()
    pieces = (backend.id_to_token(token_id) or "" for token_id in range(size))
    return joined * max(max(map(len, pieces), default=1), *(len(token.content) for token in added), 1)


def _joined_by(normalizer: Any) -> int | None:
    """Characters that become one; None: not bounded."""
    joined = 1
    for step in _steps(normalizer, "normalizers"):
        match step:
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if len(pattern) == len(
                content
            ):
                pass
            case {"type": "NFC"}:
                joined *= _COMPOSED
            case _:
                return None
    return joined


def _keeps_text(pre_tokenizer: Any) -> bool:
    return all(
        step["type"] in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed"
        for step in _steps(pre_tokenizer, "pretokenizers")
    )


def _knows_every_character(backend: tokenizers.Tokenizer) -> bool:
    """Whether each byte has a piece of its own, so that nothing is unknown or left out."""
    model = backend.model
    if not isinstance(model, models.BPE):
        return False
    if model.byte_fallback:
        return all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    byte_level = any(step["type"] == "ByteLevel" for step in _steps(backend.pre_tokenizer, "pretokenizers"))
    return byte_level and all(model.token_to_id(piece) is not None for piece in BYTE_ALPHABET)


def _steps(component: Any, nested: str) -> Iterator[dict[str, Any]]:
    """The single steps of a normalizer or pre-tokenizer, as `tokenizer.json` writes them."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting = [*step[nested], *waiting]
        else:
            yield step
