"""Prompts of a wanted length that no cache has seen: random common words."""

from __future__ import annotations

import random
from dataclasses import dataclass

_COMMON = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community "
    "name president team minute idea kid body information back parent face others level office door "
    "health person art war history party result change morning reason research girl guy moment air "
    "teacher force education river stone green garden winter summer light paper music table window street "
    "market letter field forest island bridge color sound machine engine picture journey mountain ocean "
    "animal bird horse village farmer doctor nurse artist writer singer dinner lunch bread apple sugar "
    "coffee kitchen bottle glass metal gold silver iron cotton wool leather simple quick early late happy "
    "quiet strong bright heavy "
)
WORDS = tuple(_COMMON.split())


@dataclass(frozen=True, slots=True)
class Calibration:
    """Tokens of a prompt of n words by the server's own count: fixed + per_word * n."""

    fixed: float = 0.0
    per_word: float = 1.0

    @classmethod
    def fit(cls, first: tuple[int, int], second: tuple[int, int]) -> Calibration:
        """From two prompts as (words, tokens). Raises ValueError if more words did not make more tokens."""
        per_word = (second[1] - first[1]) / (second[0] - first[0])
        if per_word <= 0:
            raise ValueError(f"{first} and {second} give {per_word} tokens per word")
        return cls(first[1] - per_word * first[0], per_word)

    def words(self, tokens: int) -> int:
        """How many words make about so many tokens; at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def draw_words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))
