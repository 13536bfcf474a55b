"""Drafters whose luck is chosen: they know what will come out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from slipstream.engine.recent_answers import RecentAnswers
from slipstream.engine.speculation import SpeculativeDrafts
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.ngram import NgramOptions, NgramProposer
from slipstream.spec.proposer import Draft, Proposer


class Replay:
    """Proposes what follows in `answers` (request id -> prompt and output), each token wrong with probability `wrong`.

    Of requests that it does not know every guess is wrong or lucky.
    """

    name = "ngram"  # what requests may ask for

    def __init__(self, answers: Mapping[str, Sequence[int]], *, wrong: float, vocabulary: int = 99, seed: int = 0):
        self._answers, self._wrong, self._vocabulary = answers, wrong, vocabulary
        self._rng = random.Random(seed)
        self.open_sequences: dict[str, list[int]] = {}

    def open(self, key: str, tokens: Sequence[int]) -> None:
        assert key not in self.open_sequences
        self.open_sequences[key] = list(tokens)

    def extend(self, key: str, tokens: Sequence[int]) -> None:
        self.open_sequences[key].extend(tokens)

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        return [Draft(tuple(self._guess(key, count))) for key, count in wanted]

    def close(self, key: str) -> None:
        del self.open_sequences[key]

    def cost(self, num_rows: int, num_tokens: int) -> float:
        return 0.0

    def _guess(self, key: str, count: int) -> list[int]:
        known = self.open_sequences[key]
        answer = list(self._answers.get(key, known))
        assert answer[: len(known)] == known, "the sequence went another way"
        right = answer[len(known) : len(known) + count]
        right += [self._rng.randrange(self._vocabulary) for _ in range(count - len(right))]
        return [(t + 1) % self._vocabulary if self._rng.random() < self._wrong else t for t in right]


def always(
    proposer: Proposer, num_tokens: int = 3, answers: RecentAnswers | None = None
) -> Callable[[GrammarStates], SpeculativeDrafts]:
    """Every draft is verified as it is."""
    control = Controller(ControlOptions(policy="fixed", num_tokens=num_tokens), None)
    return lambda grammars: SpeculativeDrafts(proposer, control, grammars, answers=answers)


def ngrams(
    num_tokens: int = 3, min_match: int = 1, answers: RecentAnswers | None = None
) -> Callable[[GrammarStates], SpeculativeDrafts]:
    return always(NgramProposer(NgramOptions(min_match=min_match)), num_tokens, answers)
