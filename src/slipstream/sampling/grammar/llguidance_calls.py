"""How llguidance is called, by the engine and by the process that reads grammars first; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llguidance

BYTE_EOS = 256

# Where requests come from outside, a grammar must not take the machine's memory or the other requests' time.
_MAX_GRAMMAR_SIZE = 200_000
_MAX_LEXER_STATES = 100_000
MAX_ITEMS_IN_ROW = 10_000  # alternatives open at one place: choices, optional properties


def new_matcher(tokens: llguidance.LLTokenizer, source: str) -> llguidance.LLMatcher:
    """Never raises: see `is_error`. Lets go of the interpreter while it works."""
    import llguidance

    limits = llguidance.LLParserLimits(
        max_grammar_size=_MAX_GRAMMAR_SIZE,
        max_lexer_states=_MAX_LEXER_STATES,
        max_items_in_row=MAX_ITEMS_IN_ROW,
        verbose_errors=False,
    )
    return llguidance.LLMatcher(tokens, source, log_level=0, limits=limits)


def byte_tokens() -> llguidance.LLTokenizer:
    """A vocabulary of the 256 bytes and an end of sequence."""
    return _tokenizer(_Bytes((*(bytes([byte]) for byte in range(256)), b"<eos>"), BYTE_EOS, (BYTE_EOS,)))


def named_tokens(vocab_size: int, special: Mapping[int, bytes]) -> llguidance.LLTokenizer:
    """What reading a grammar needs of a vocabulary: its size and the names of its special tokens; for the rest it has
    the single bytes, behind its end."""
    tokens = [b""] * vocab_size + [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    for token_id, name in special.items():
        tokens[token_id] = name
    return _tokenizer(_Bytes(tuple(tokens), len(tokens) - 1, (*sorted(special), len(tokens) - 1)))


def _tokenizer(tokens: _Bytes) -> llguidance.LLTokenizer:
    import llguidance

    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(tokens), n_vocab=len(tokens.tokens), eos_token=tokens.eos_token_id, slices=[]
    )


class _Bytes:
    """The attributes that llguidance reads of a tokenizer; the bytes are the 256 tokens before the last."""

    bos_token_id = None

    def __init__(self, tokens: tuple[bytes, ...], eos_token_id: int, special_token_ids: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = special_token_ids

    def __call__(self, text: bytes | str) -> list[int]:
        first = self.eos_token_id - 256
        return [first + byte for byte in (text if isinstance(text, bytes) else text.encode())]
