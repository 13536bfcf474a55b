"""Text that a grammar leaves no choice about, found byte by byte and no further than asked.

llguidance can do this itself, but follows such a text to its end, however long, before every mask; it is told not to
(`sources.UNFORCED`), and this takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.sampling.grammar.llguidance_calls import BYTE_EOS
from slipstream.sampling.grammar.vocabulary import GrammarVocabulary, whole_characters

if TYPE_CHECKING:
    import llguidance

WINDOW = 64  # bytes looked ahead for forced tokens

_BYTES = (1 << BYTE_EOS) - 1


def forced_bytes(matcher: llguidance.LLMatcher, limit: int) -> bytes:
    """The only bytes that may follow, at most `limit`; `matcher`, of single bytes, is moved behind them.

    The text ends where there is a choice, which ending the answer is one of.
    """
    found = bytearray()
    while len(found) < limit and not matcher.is_accepting():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & _BYTES
        if allowed.bit_count() != 1:
            break
        byte = allowed.bit_length() - 1
        if not matcher.consume_token(byte):
            break
        found.append(byte)
    return bytes(found)


def forced_tokens(matcher: llguidance.LLMatcher, vocabulary: GrammarVocabulary) -> list[int]:
    """How the tokenizer spells the forced text of at most `WINDOW` bytes; `matcher`, of single bytes, is moved.

    A last token that could be longer, depending on what follows, is left out; so is a character that is not whole.
    """
    text = whole_characters(forced_bytes(matcher, WINDOW))
    tokens = vocabulary.encode(text) if text else []
    return tokens if _ends(matcher) else tokens[:-1]


def _ends(matcher: llguidance.LLMatcher) -> bool:
    return matcher.is_accepting() and (
        matcher.is_stopped() or not int.from_bytes(matcher.compute_bitmask(), "little") & _BYTES
    )
