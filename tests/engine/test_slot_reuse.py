"""A long prompt and then a short one in the same slot and the same blocks: what is drafted for the second one, and how
much of it is accepted, is what it would have been alone. And what has warmed up has learned nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from replay import ngrams
from tiny_drafter import Drafter
from tiny_engine import BACKENDS, TinyEngine

from slipstream import SamplingParams
from slipstream.engine.drafts import DraftProposer
from slipstream.engine.outputs import CompletionStats, RequestOutput
from slipstream.engine.warm_up import warm_up
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.ngram import NgramOptions, NgramProposer

_RNG = random.Random(5)
LOOP = (7, 8, 9, 10, 11, 12)
LONG = (*(_RNG.randrange(99) for _ in range(40)), *LOOP * 6)
SHORT = (*(_RNG.randrange(99) for _ in range(5)), *LOOP, *LOOP[:4])
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2)
SEEDED = SamplingParams(temperature=1.3, top_p=0.95, max_tokens=24, seed=3, logprobs=2)
Make = Callable[[GrammarStates], DraftProposer]


def make(kind: str, backend: str) -> Make:
    if kind == "ngram":
        return ngrams(num_tokens=4)
    lookup = NgramProposer(NgramOptions(min_match=1)) if kind == "both" else None
    return Drafter(backend, noise=0.1, num_tokens=4, num_blocks=40, caching=True, lookup=lookup).make


def engine(kind: str, backend: str, caching: bool) -> TinyEngine:
    return TinyEngine(backend=backend, max_num_seqs=1, num_blocks=30, caching=caching, drafts=make(kind, backend))


def counts(output: RequestOutput) -> tuple[int, int, int]:
    found = output.outputs[0].stats
    assert isinstance(found, CompletionStats)
    return found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["ngram", "model", "both"])
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_long_prompt_does_not_change_what_is_accepted_of_a_short_one(
    backend: str, kind: str, caching: bool, params: SamplingParams
) -> None:
    fresh, used = engine(kind, backend, caching), engine(kind, backend, caching)
    [alone] = fresh.answer([(SHORT, params)])
    [before] = used.answer([(LONG, params)])
    [later] = used.answer([(SHORT, params)])
    assert later.outputs == alone.outputs
    assert counts(later) == counts(alone)
    assert [row.tokens for row in used.runner.rows("r1")] == [row.tokens for row in fresh.runner.rows("r0")]
    assert counts(alone)[1] > counts(alone)[2] >= (kind != "ngram")
    assert counts(before)[1] > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["ngram", "model", "both"])
def test_a_warm_up_drafts_nothing_and_changes_nothing(backend: str, kind: str) -> None:
    cold, warm = engine(kind, backend, caching=True), engine(kind, backend, caching=True)
    warm_up(warm.core)
    assert all(row.num_draft == 0 for plan in warm.runner.plans for row in plan.rows)
    assert warm.core.stats().num_draft_tokens == warm.core.stats().num_finished == 0
    [expected] = cold.answer([(SHORT, GREEDY)])
    [found] = warm.answer([(SHORT, GREEDY)])
    assert found.outputs == expected.outputs
    assert counts(found) == counts(expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_warm_up_leaves_nothing_in_the_draft_model(backend: str) -> None:
    drafter = Drafter(backend, noise=0.1)
    tiny = TinyEngine(backend=backend, drafts=drafter.make)
    warm_up(tiny.core)
    assert {row.request_id for plan in drafter.runner.plans for row in plan.rows} >= {
        "warm-up-short-0",
        "warm-up-long-0",
    }
    drafter.idle()
