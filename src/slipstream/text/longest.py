"""How much text one token stands for at most, so that a text that is too long for any context is known unread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from slipstream.text.pieces import BYTE_ALPHABET

_COMPOSED = 4
"""Characters that NFC joins to one: the longest canonical decompositions have four (Unicode Standard Annex 15)."""

_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})


@dataclass(frozen=True, slots=True)
class TextBound:
    """`longest`: characters of text that no token exceeds. `unread`: characters that the vocabulary does not have and
    that are left out of a text, however many there are; they do not count."""

    longest: int
    unread: str = ""

    def counted(self, text: str) -> int:
        """Characters that count."""
        return len(text) - sum(map(text.count, self.unread))


def text_bound(backend: tokenizers.Tokenizer) -> TextBound | None:
    """None where a token may stand for any number of characters.

    That is so where unknown characters in a row become one token, where white space beside a token belongs to it, and
    where the normalizer or the pre-tokenizer drops characters or does what is not known here. A byte-level piece has
    one character for each byte, so its length bounds its characters too.
    """
    joined = _joined_by(backend.normalizer)
    unread = _unread(backend)
    if joined is None or unread is None or not _keeps_text(backend.pre_tokenizer):
        return None
    added = list(backend.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip for token in added):
        return None
    size = backend.get_vocab_size(with_added_tokens=True)
    longest = max(len(backend.id_to_token(token_id) or "") for token_id in range(size))
    return TextBound(joined * max([longest, *(len(token.content) for token in added)]), unread)


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


def _unread(backend: tokenizers.Tokenizer) -> str | None:
    """Characters without any piece; None: not known. A byte-level vocabulary may lack control characters that its
    training text did not have. All other characters have bytes from 0x80 to 0xBF, which it must have."""
    model = backend.model
    if not isinstance(model, models.BPE):
        return None
    if model.byte_fallback:
        return "" if all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)) else None
    if not any(step["type"] == "ByteLevel" for step in _steps(backend.pre_tokenizer, "pretokenizers")):
        return None
    missing = [byte for byte, piece in enumerate(BYTE_ALPHABET) if model.token_to_id(piece) is None]
    if any(0x80 <= byte <= 0xBF for byte in missing):
        return None
    return "".join(chr(byte) for byte in missing if byte < 0x80)


def _steps(component: Any, nested: str) -> Iterator[dict[str, Any]]:
    """The single steps of a normalizer or pre-tokenizer, as `tokenizer.json` writes them."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting = [*step[nested], *waiting]
        else:
            yield step
