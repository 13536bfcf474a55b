"""Drafts without a model: what followed the last time that the same tokens came (prompt lookup decoding)."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.errors import ConfigError
from slipstream.lean import dataclass
from slipstream.spec.proposer import NOTHING, Draft
from slipstream.spec.suffix import SuffixAutomaton


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """A suffix of `min_match` tokens or more must have occurred before; more than `max_match` add no evidence."""

    min_match: int = 2
    max_match: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ConfigError(
                f"n-gram matches of {self.min_match} to {self.max_match} tokens make no sense.",
                where="speculation.ngram",
                fix="Choose 1 <= min_match <= max_match.",
            )


class NgramProposer:
    """Suffix automaton over prompt and output of each sequence; the longest match wins (Proposer protocol).

    `evidence` of a draft is the length of its match, in powers of two.
    """

    name = "ngram"

    def __init__(self, options: NgramOptions | None = None) -> None:
        self._options = options or NgramOptions()
        self._sequences: dict[str, SuffixAutomaton] = {}

    def open(self, key: str, tokens: Sequence[int]) -> None:
        if key in self._sequences:
            raise ValueError(f"sequence {key!r} is open already.")
        sequence = SuffixAutomaton()
        sequence.extend(tokens)
        self._sequences[key] = sequence

    def extend(self, key: str, tokens: Sequence[int]) -> None:
        self._sequences[key].extend(tokens)

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        return [self._draft(self._sequences[key], count) for key, count in wanted]

    def candidates(self, key: str, count: int, most: int) -> list[Draft]:
        """Up to `most` drafts of different first tokens, longest match first."""
        sequence = self._sequences[key]
        drafts: dict[int, Draft] = {}
        for length, end in sequence.matches(self._options.min_match, self._options.max_match):
            tokens = sequence.continuation(end, count)
            if tokens and tokens[0] not in drafts:
                drafts[tokens[0]] = Draft(tokens, length.bit_length())
                if len(drafts) == most:
                    break
        return list(drafts.values())

    def close(self, key: str) -> None:
        self._sequences.pop(key, None)

    def cost(self, num_rows: int, num_tokens: int) -> float:
        """Microseconds, which a step of a model never notices."""
        return 0.0

    def _draft(self, sequence: SuffixAutomaton, count: int) -> Draft:
        if count < 1:
            return NOTHING
        match = sequence.longest(self._options.min_match, self._options.max_match)
        if match is None:
            return NOTHING
        length, end = match
        return Draft(sequence.continuation(end, count), length.bit_length())
