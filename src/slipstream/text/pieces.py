"""From a vocabulary piece to the raw bytes it stands for.

Two spellings are in use. *Byte-level* BPE (GPT-2, Radford et al. 2019) writes each of the 256 bytes as one printable
character, so a piece is a string of such characters. *SentencePiece* (Kudo and Richardson, arXiv 1808.06226) writes
text as it is, a space as U+2581, and a byte that no piece covers as `<0xNN>`.
"""

from __future__ import annotations

from enum import Enum

from slipstream.lean import dataclass

SPACE_MARK = "\u2581"
_OUTSIDE_LATIN1 = "\uffff"


def _byte_alphabet() -> tuple[str, ...]:
    """Character of each byte: printable Latin-1 stands for itself, the other 68 follow from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_ALPHABET: tuple[str, ...] = _byte_alphabet()

# A Latin-1 character outside the alphabet must not pass as a byte: it is sent beyond Latin-1, where encoding fails.
_TO_LATIN1 = str.maketrans(
    {chr(code): _OUTSIDE_LATIN1 for code in range(256)} | {mark: chr(byte) for byte, mark in enumerate(BYTE_ALPHABET)}
)


class Spelling(Enum):
    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"


@dataclass(frozen=True)
class PieceScheme:
    """How pieces spell text. `strip_leading_space`: encoding puts a space before the text, so decoding drops one."""

    spelling: Spelling
    byte_fallback: bool = False
    strip_leading_space: bool = False

    def to_bytes(self, piece: str, *, added: bool = False) -> bytes:
        """Bytes of one piece. An added token (`added`) is spelled literally in a byte-level vocabulary."""
        if self.spelling is Spelling.BYTE_LEVEL:
            return piece.encode("utf-8") if added else byte_level_bytes(piece)
        if self.byte_fallback and not added:
            byte = fallback_byte(piece)
            if byte is not None:
                return bytes((byte,))
        return piece.replace(SPACE_MARK, " ").encode("utf-8")


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece with a character outside the byte alphabet is literal text."""
    try:
        return piece.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")


def fallback_byte(piece: str) -> int | None:
    """The byte that `<0xNN>` stands for, or None if the piece is no byte token."""
    if len(piece) != 6 or not piece.startswith("<0x") or piece[5] != ">":
        return None
    digits = piece[3:5]
    return int(digits, 16) if all(digit in "0123456789abcdefABCDEF" for digit in digits) else None
