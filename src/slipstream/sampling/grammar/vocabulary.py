"""The vocabulary as the grammar engine needs it: the bytes of every token, and a tokenizer of single bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.grammar.llguidance_calls import byte_tokens

MAX_TOKEN_BYTES = 64  # longer tokens (runs of spaces or dashes) are never needed to close an answer
_CONTINUING = bytes(range(0x80, 0xC0))  # the bytes of a character behind its first


class TokenBytes(Protocol):
    """What is asked of a tokenizer; `text.tokenizer.Tokenizer` fits."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class GrammarVocabulary:
    """Built once per model, in about 10 microseconds per token; safe to share between threads.

    `vocab_size` is the model's, which may be larger than the tokenizer's. Of several tokens with the same bytes the
    one with the lowest id is used to spell a text. Without `eos_token_ids` an id beyond the vocabulary stands in.
    """

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        special = set(tokenizer.special_ids) | set(eos_token_ids)
        self.bytes = [b"" if i in special else tokenizer.token_bytes(i) for i in range(vocab_size)]
        self._ids: dict[bytes, int] = {}
        for token_id, data in enumerate(self.bytes):
            if data and len(data) <= MAX_TOKEN_BYTES:
                self._ids.setdefault(data, token_id)
        self._longest = max(map(len, self._ids), default=0)
        self.begins_with_digit: NDArray[np.bool_] = np.array([data[:1].isdigit() for data in self.bytes])
        pseudo_eos = [] if eos_token_ids else [vocab_size]
        names = [tokenizer.token_bytes(i) if i in special else data for i, data in enumerate(self.bytes)]
        wrapped = _Wrapped(
            self, [*names, *(b"<eos>" for _ in pseudo_eos)], [*self.eos_token_ids, *pseudo_eos], sorted(special)
        )
        import llguidance  # takes 40 ms, and most requests have no grammar

        self.tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapped),
            n_vocab=vocab_size + len(pseudo_eos),
            eos_token=[*self.eos_token_ids, *pseudo_eos],
        )
        self.single_bytes = byte_tokens()
        self.spell = lru_cache(maxsize=512)(self._spell)

    def encode(self, data: bytes) -> list[int]:
        """The tokenizer's own tokens for `data`; where these would spell other bytes, the fewest tokens that do.

        `data` may begin and end within a character; what there is of these two is spelled by the fewest tokens.
        """
        rest = data.lstrip(_CONTINUING)
        whole = whole_characters(rest)
        text = whole.decode("utf-8", errors="replace")
        ids = self._tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []
        head, tail = self._spell(data[: len(data) - len(rest)]), self._spell(rest[len(whole) :])
        if head is None or tail is None or not all(0 <= i < self.vocab_size for i in ids):
            return list(self._spell(data) or ())
        if b"".join([self.bytes[i] for i in ids]) != whole:
            return list(self._spell(data) or ())
        return [*head, *ids, *tail]

    def _spell(self, data: bytes) -> tuple[int, ...] | None:
        """The fewest tokens whose bytes are `data`; None if there are none. What follows the first of them is again
        the fewest for the rest."""
        size = len(data)
        best: list[tuple[int, int] | None] = [None] * size + [(0, 0)]  # (tokens to the end, bytes of the first)
        for start in range(size - 1, -1, -1):
            for length in range(min(self._longest, size - start), 0, -1):
                rest = best[start + length]
                if rest is None or data[start : start + length] not in self._ids:
                    continue
                found = best[start]
                if found is None or rest[0] + 1 < found[0]:
                    best[start] = rest[0] + 1, length
        ids: list[int] = []
        at = 0
        while at < size:
            step = best[at]
            if step is None:
                return None
            ids.append(self._ids[data[at : at + step[1]]])
            at += step[1]
        return tuple(ids)


def whole_characters(data: bytes) -> bytes:
    """`data` without the character that its end breaks off, if it does."""
    for have in range(1, min(3, len(data)) + 1):
        first = data[-have]
        if first >= 0xC0:
            return data[:-have] if have < (2 if first < 0xE0 else 3 if first < 0xF0 else 4) else data
        if first < 0x80:
            break
    return data


class _Wrapped:
    """The attributes that llguidance reads of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, vocabulary: GrammarVocabulary, tokens: list[bytes], eos: list[int], special_token_ids: list[int]
    ) -> None:
        self._vocabulary = vocabulary
        self.tokens = tokens
        self.eos_token_id = eos[0]
        self.special_token_ids = sorted({*special_token_ids, *eos})

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.encode(text if isinstance(text, bytes) else text.encode())
