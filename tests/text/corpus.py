"""Texts on which two tokenizers that differ at all tend to differ."""

from __future__ import annotations

import random

PIECES: tuple[str, ...] = (
    "Hello, world!",
    " leading space",
    "   three leading spaces",
    "trailing space ",
    "trailing   ",
    "a  b   c    d",
    " " * 2 + "x" + " " * 17 + "y" + " " * 40 + "z",
    "\ttab\t\ttabs\t \t mixed",
    "line\nline\n\nline\n\n\n\nline",
    "\n",
    "\n\n  \n \n",
    "crlf\r\ncrlf\r\n\r\nend\r",
    "It's we've I'm you'll they'd he'S WE'RE don'T 'tis 's",
    "0 1 12 123 1234 12345 1234567890 3.14 -2e10 1,000,000 0xFF",
    "½ ² ① Ⅳ ٣٤٥ ९ 一二三",
    'def f(x: int) -> str:\n    return f"{x!r}\\n"  # comment\n\n\nclass A(B):\n\tpass',
    "<html><body class='x'>&amp;</body></html>",
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "HTTPResponse camelCase SCREAMING_CASE MixedCASEWord",
    "naïve café Grüße ÆØÅ ſtraße İstanbul ĳ",
    "e\u0301 combining a\u0308\u0323 vs é",
    "Ελληνικά русский українська עברית العربية हिन्दी বাংলা ไทย",
    "你好，世界。 日本語のテキスト ㈱ 한국어 문장",
    "👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ 1️⃣ 🫠",
    "zero\u200bwidth nb\u00a0space ideographic\u3000space \u2028 \u2029 \ufeff bom",
    "▁ literal ▁▁ marks <0x41> and <0x0A>",
    "\x00\x01\x1f\x7f control",
    "".join(map(chr, range(0x80))),
    "".join(map(chr, range(0x80, 0x100))),
    bytes(range(256)).decode("utf-8", errors="replace"),
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 🀄 \U0010ffff \ufffd \uffff",
    "a" * 100,
    "ab" * 50,
    "",
    " ",
    "x",
)


def corpus(specials: tuple[str, ...], *, rounds: int = 150, seed: int = 7) -> list[str]:
    """The pieces, each beside special tokens in every way, and random mixtures of it all."""
    texts = list(PIECES)
    for special in specials:
        for piece in ("word", " word", "word ", "\n", "  ", "5"):
            texts += [special + piece, piece + special, piece + special + piece]
        texts += [special, special * 2, f"{special} {special}", special[:-1], special[1:], special.upper()]
    chance = random.Random(seed)
    letters = [*PIECES, *specials, " ", "  ", "\n", "\t", "'s", "12", "é", "你", "👍"]
    for _ in range(rounds):
        parts = []
        for _ in range(chance.randint(1, 6)):
            part = chance.choice(letters)
            start = chance.randint(0, len(part))
            parts.append(part if chance.random() < 0.5 else part[start : start + chance.randint(0, 12)])
        texts.append("".join(parts))
    return texts
