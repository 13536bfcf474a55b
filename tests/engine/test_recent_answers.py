"""Drafts from answers that have ended: quicker for whom they belong to, invisible to everybody else."""

from __future__ import annotations

import random

import pytest
from replay import ngrams
from scheduling_loop import request
from tiny_engine import BACKENDS, TinyEngine

from slipstream import SamplingParams
from slipstream.engine.core import EngineCore
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.protocol import RequestSpeculation
from slipstream.engine.recent_answers import RecentAnswers
from slipstream.engine.warm_up import warm_up
from slipstream.spec.answers import LEAD, SHARED, AnswerStore
from slipstream.spec.proposer import NOTHING, Draft

_RNG = random.Random(5)
PROMPT = tuple(_RNG.randrange(99) for _ in range(11))
OTHER = tuple(_RNG.randrange(99) for _ in range(9))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2)
SEEDED = SamplingParams(temperature=1.3, top_p=0.95, max_tokens=24, seed=3, logprobs=2)


def engine(backend: str = "reference", capacity: int = 1000, **settings: object) -> TinyEngine:
    drafts = ngrams(4, min_match=2, answers=RecentAnswers(AnswerStore(capacity)))
    return TinyEngine(backend=backend, drafts=drafts, **settings)  # type: ignore[arg-type]


def ask(
    engine: TinyEngine, name: str, tenant: str | None = None, salt: str | None = None, params: SamplingParams = GREEDY
) -> RequestOutput:
    engine.add(name, PROMPT, params, tenant=tenant, cache_salt=salt)
    engine.run()
    return engine.outputs[name]


def counts(core: EngineCore) -> tuple[int, int, int]:
    stats = core.stats()
    return stats.num_store_tokens, stats.num_store_draft_tokens, stats.num_store_accepted_tokens


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_same_question_again_is_drafted_right_and_answered_alike(backend: str, params: SamplingParams) -> None:
    [expected] = TinyEngine(backend=backend).answer([(PROMPT, params)])
    shared = engine(backend)
    first, again = ask(shared, "a", params=params), ask(shared, "b", params=params)
    for each in (first, again):
        assert each.outputs[0].token_ids == expected.outputs[0].token_ids
        assert each.outputs[0].logprobs == expected.outputs[0].logprobs
    held, drafted, accepted = counts(shared.core)
    assert held == 2 * (len(PROMPT) + 24 + 1)
    assert drafted >= accepted >= 18
    # The prompt and its token, then four drafted tokens and one more at a time.
    assert [len(row.tokens) for row in shared.runner.rows("b")] == [11, 5, 5, 5, 5, 3]


OWNERS = [(None, None), ("ann", None), ("bob", None), (None, "salt"), ("ann", "salt"), ("ann", "pepper")]


@pytest.mark.parametrize("owner", OWNERS[1:], ids=str)
def test_nobody_else_can_tell_that_an_answer_was_given(owner: tuple[str | None, str | None]) -> None:
    """Every token that was fed for the request, drafts and all, and every count of its are those of an engine to which
    the same question was never put, though all others got the same answer."""
    alone, busy = engine(), engine()
    for number, (tenant, salt) in enumerate(each for each in OWNERS if each != owner):
        ask(busy, f"other-{number}", tenant, salt)
    before = counts(busy.core)[1:]
    expected, found = ask(alone, "mine", *owner), ask(busy, "mine", *owner)
    assert [row.tokens for row in busy.runner.rows("mine")] == [row.tokens for row in alone.runner.rows("mine")]
    assert found.outputs == expected.outputs
    assert counts(busy.core)[1:] == before
    ask(busy, "mine again", *owner)
    assert counts(busy.core)[2] >= before[1] + 18


def test_requests_that_run_side_by_side_share_nothing_before_they_end() -> None:
    both = engine(max_num_seqs=2)
    both.answer([(PROMPT, GREEDY), (PROMPT, GREEDY)])
    assert counts(both.core) == (2 * (len(PROMPT) + 24 + 1), 0, 0)


def test_what_drafts_nothing_leaves_nothing() -> None:
    quiet = engine()
    warm_up(quiet.core)
    quiet.add("off", PROMPT, GREEDY, speculative=RequestSpeculation("off"))
    quiet.run()
    assert counts(quiet.core) == (0, 0, 0)


def test_an_aborted_answer_counts_and_a_failed_one_does_not() -> None:
    answers = RecentAnswers(AnswerStore(100))
    each = request("a", 20, max_tokens=9)
    for token in (1, 2, 3):
        each.append(token)
    each.finish_reason = "error"
    answers.keep(each)
    assert answers.stats.num_tokens == 0
    each.finish_reason = "abort"
    answers.keep(each)
    assert answers.stats.num_tokens == LEAD + 3 + 1


def test_the_oldest_answer_makes_room() -> None:
    small = engine(capacity=50)
    small.answer([(PROMPT, GREEDY)])
    small.answer([(OTHER, GREEDY)])
    held, before, _ = counts(small.core)
    assert held == len(OTHER) + 24 + 1
    ask(small, "again")
    assert counts(small.core)[1] == before


def test_own_text_that_matches_as_much_is_preferred() -> None:
    store = AnswerStore(100)
    store.add((None, None), [1, 2, 3, 4, 5, 6, 7, 8])
    answers = RecentAnswers(store)
    each = request("a", 5, max_tokens=9)
    for token in (3, 4, 5):
        each.append(token)
    found = Draft((6, 7), SHARED + 2)
    assert answers.better(each, 2, NOTHING) == answers.better(each, 2, Draft((9,), 1)) == found
    own = Draft((9,), 2)  # two or three tokens of its own text
    assert answers.better(each, 2, own) is own
    each.tenant = "ann"
    assert answers.better(each, 2, NOTHING) is NOTHING


def test_a_request_for_the_draft_model_alone_is_not_looked_up() -> None:
    store = AnswerStore(100)
    store.add((None, None), list(range(30)))
    drafts = ngrams(4, answers=RecentAnswers(store))(None)  # type: ignore[arg-type]
    each = request("a", 5, max_tokens=9)
    for token in (3, 4, 5):
        each.append(token)
    assert drafts.propose([each])[0].tokens == (6, 7, 8, 9)
    each.drafter = "draft_model"
    assert drafts.propose([each])[0] is NOTHING
