"""A smaller model drafts, composed with whatever ends, moves or restricts a request: never another token."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from replay import Replay
from tiny_drafter import Drafter
from tiny_engine import BACKENDS, TinyEngine, spell, tokens

from slipstream import SamplingParams
from slipstream.engine import draft_model
from slipstream.engine.outputs import CompletionStats, RequestOutput
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.spec.ngram import NgramOptions, NgramProposer
from slipstream.spec.proposer import NOTHING, Draft

_RNG = random.Random(5)
PROMPT = tuple(_RNG.randrange(99) for _ in range(11))
OTHER = tuple(_RNG.randrange(99) for _ in range(6))
LONG = tuple(_RNG.randrange(99) for _ in range(60))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, logprobs=2)
SEEDED = SamplingParams(temperature=1.3, top_p=0.95, max_tokens=24, seed=3, logprobs=2)
GRAMMAR = f"([{spell([0])}-{spell([49])}][{spell([50])}-{spell([98])}])*"
KINDS = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "several": SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=20, logprobs=1, prompt_logprobs=1),
    "penalties": SamplingParams(
        temperature=0.8,
        seed=2,
        max_tokens=24,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={5: 1.5, 60: -2.0},
        min_tokens=4,
        stop_token_ids=(7, 8),
    ),
    "grammar": SamplingParams(temperature=1.0, seed=9, max_tokens=24, grammar=GrammarSpec.regex(GRAMMAR)),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def plain(backend: str, prompt: tuple[int, ...], params: SamplingParams) -> RequestOutput:
    [output] = TinyEngine(backend=backend).answer([(prompt, params)])
    return output


def same(ours: RequestOutput, expected: RequestOutput) -> None:
    for a, b in zip(ours.outputs, expected.outputs, strict=True):
        assert (a.token_ids, a.text, a.finish_reason, a.stop_reason) == (
            b.token_ids,
            b.text,
            b.finish_reason,
            b.stop_reason,
        )
        assert (a.logprobs, a.cumulative_logprob) == (b.logprobs, b.cumulative_logprob)


def stats(output: RequestOutput) -> CompletionStats:
    found = output.outputs[0].stats
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_itself_drafts_every_token_right(backend: str, kind: str) -> None:
    """Drafts are drawn as the request's own tokens are, so an equal model has equal tokens, whatever the parameters."""
    drafter = Drafter(backend, num_tokens=4)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    [output] = engine.answer([(PROMPT, KINDS[kind])])
    same(output, plain(backend, PROMPT, KINDS[kind]))
    totals = engine.core.stats()
    assert totals.num_accepted_tokens == totals.num_draft_tokens > 0
    drafter.idle()


@pytest.mark.parametrize("noise", [0.1, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_errs_changes_nothing(backend: str, kind: str, noise: float) -> None:
    drafter = Drafter(backend, noise=noise)
    engine = TinyEngine(backend=backend, drafts=drafter.make, max_num_batched_tokens=7)
    outputs = engine.answer([(PROMPT, KINDS[kind]), (OTHER, GREEDY), (LONG, SEEDED)])
    for output, each in zip(outputs, [(PROMPT, KINDS[kind]), (OTHER, GREEDY), (LONG, SEEDED)], strict=True):
        same(output, plain(backend, *each))
    totals = engine.core.stats()
    assert totals.num_accepted_tokens < totals.num_draft_tokens
    drafter.idle()


def test_some_of_the_drafts_of_a_disturbed_model_are_right(backend: str) -> None:
    drafter = Drafter(backend, noise=0.1)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    engine.answer([(PROMPT, GREEDY), (PROMPT, SEEDED)])
    totals = engine.core.stats()
    assert 0.2 < totals.num_accepted_tokens / totals.num_draft_tokens < 1.0


def test_what_was_drafted_right_is_not_fed_again(backend: str) -> None:
    """11 prompt tokens and the first answer; then the last drafted token, never fed, and the one behind it."""
    drafter = Drafter(backend, num_tokens=3)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    params = SamplingParams(temperature=0.0, max_tokens=13)
    engine.answer([(PROMPT, params)])
    assert drafter.fed("r0") == [12, 1, 1, 2, 1, 1, 2, 1, 1]
    starts = [row.start for row in drafter.runner.rows("r0")]
    assert starts == [0, 12, 13, 14, 16, 17, 18, 20, 21]


def test_after_a_wrong_token_the_right_one_is_fed(backend: str) -> None:
    drafter = Drafter(backend, noise=5.0, num_tokens=3)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    [output] = engine.answer([(PROMPT, GREEDY)])
    known = [*PROMPT, *output.outputs[0].token_ids]
    rows = drafter.runner.rows("r0")
    firsts = [row for row, before in zip(rows[1:], rows, strict=False) if row.start <= before.start]
    assert len(firsts) > 10
    assert all(row.tokens == tuple(known[row.start : row.start + len(row.tokens)]) for row in firsts)


def test_rows_are_drafted_for_together(backend: str) -> None:
    drafter = Drafter(backend, num_tokens=3)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    engine.answer([(PROMPT, GREEDY), (OTHER, GREEDY), (LONG, GREEDY)])
    assert [len(plan.rows) for plan in drafter.runner.plans[:6]] == [3] * 6


class Now(Replay):
    """Finds what is right at some lengths of the sequence, and nothing at others."""

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        found = super().propose(wanted)
        return [
            draft if len(self.open_sequences[key]) // 4 % 2 == 0 else NOTHING
            for (key, _), draft in zip(wanted, found, strict=True)
        ]


@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_where_a_lookup_drafts_the_model_catches_up_later(backend: str, params: SamplingParams, noise: float) -> None:
    expected = plain(backend, PROMPT, params)
    lookup = Now({"r0": [*PROMPT, *expected.outputs[0].token_ids]}, wrong=0.0)
    drafter = Drafter(backend, noise=noise, num_tokens=3, lookup=lookup)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    [output] = engine.answer([(PROMPT, params)])
    same(output, expected)
    assert any(lag > 2 for lag in drafter.fed("r0")[1:])
    if noise == 0.0:
        assert stats(output).acceptance_rate == 1.0
    drafter.idle()


@pytest.mark.parametrize("mode", ["ngram", "draft_model"])
def test_a_request_may_have_one_drafter_alone(backend: str, mode: str) -> None:
    loop = (7, 8, 9, 10, 11, 12) * 4
    drafter = Drafter(backend, lookup=NgramProposer(NgramOptions(min_match=1)))
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    engine.add("a", loop, GREEDY, speculative=RequestSpeculation(mode))  # type: ignore[arg-type]
    engine.run()
    same(engine.outputs["a"], plain(backend, loop, GREEDY))
    drafted = stats(engine.outputs["a"]).num_draft_tokens
    assert drafted > 0
    steps = len(drafter.runner.plans)
    assert steps == (0 if mode == "ngram" else drafted)


def test_a_long_prompt_is_fed_in_pieces_beside_the_others(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "CATCH_UP", 16)
    drafter = Drafter(backend, num_tokens=2)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    outputs = engine.answer([(LONG, GREEDY), (OTHER, SEEDED)])
    same(outputs[0], plain(backend, LONG, GREEDY))
    same(outputs[1], plain(backend, OTHER, SEEDED))
    assert drafter.fed("r0")[:5] == [9, 16, 16, 16, 8]  # the shorter prompt is fed first
    assert stats(outputs[0]).num_draft_tokens > 0


@pytest.mark.parametrize("room", [4, 20])
def test_small_steps_of_the_draft_model(backend: str, room: int) -> None:
    drafter = Drafter(backend, max_step_tokens=room)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    outputs = engine.answer([(PROMPT, GREEDY), (OTHER, SEEDED), (LONG, SEEDED)])
    for output, each in zip(outputs, [(PROMPT, GREEDY), (OTHER, SEEDED), (LONG, SEEDED)], strict=True):
        same(output, plain(backend, *each))
    assert max(plan.num_tokens for plan in drafter.runner.plans) <= room
    assert engine.core.stats().num_draft_tokens > 0


def test_preemption_in_the_middle_of_drafts(backend: str) -> None:
    requests = [(PROMPT, GREEDY), (OTHER, SEEDED), (PROMPT[3:], GREEDY)]
    drafter = Drafter(backend, noise=0.1)
    engine = TinyEngine(backend=backend, drafts=drafter.make, num_blocks=14)
    outputs = engine.answer(requests)
    for output, each in zip(outputs, requests, strict=True):
        same(output, plain(backend, *each))
    assert engine.core.stats().num_preemptions > 0
    assert engine.core.stats().num_accepted_tokens > 0
    drafter.idle()


@pytest.mark.parametrize("num_blocks", [1, 4, 9, 12])
def test_no_blocks_for_drafting_no_draft(backend: str, num_blocks: int) -> None:
    """One sequence may have 9 blocks; those of requests that are not asked for now are taken first."""
    requests = [(PROMPT, GREEDY), (OTHER, SEEDED), (LONG, GREEDY)]
    drafter = Drafter(backend, num_blocks=num_blocks)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    outputs = engine.answer(requests)
    for output, each in zip(outputs, requests, strict=True):
        same(output, plain(backend, *each))
    assert (engine.core.stats().num_draft_tokens > 0) == (num_blocks >= 4)
    drafter.idle()


def test_blocks_of_a_request_that_is_not_asked_for_are_taken(backend: str) -> None:
    drafter = Drafter(backend, num_blocks=9, num_tokens=1)
    engine = TinyEngine(backend=backend, drafts=drafter.make, num_blocks=30)
    engine.add("a", LONG[:20], SamplingParams(temperature=0.0, max_tokens=40))
    engine.step()
    engine.step()
    assert drafter.model._kv.usage().used == 6
    [first] = drafter.model._followers.values()
    second = engine.core._scheduler
    engine.add("b", LONG[20:44], SamplingParams(temperature=0.0, max_tokens=8))
    engine.step()
    request = next(each for each in second.requests if each.id == "b")
    [draft] = drafter.model.propose([(request, 1)])
    assert len(draft.tokens) == 1
    assert (first.computed, first.table.blocks) == (0, [])
    drafter.model.check()
    engine.run()
    drafter.idle()


def test_abort_while_a_draft_is_under_way(backend: str) -> None:
    drafter = Drafter(backend)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    engine.add("a", PROMPT, GREEDY)
    engine.add("b", OTHER, SEEDED)
    for _ in range(3):
        engine.step()
    engine.abort("a")
    engine.run()
    same(engine.outputs["b"], plain(backend, OTHER, SEEDED))
    drafter.idle()


def test_a_cached_prefix_is_not_fed_again_but_only_to_the_same_tenant(backend: str) -> None:
    drafter = Drafter(backend, caching=True)
    engine = TinyEngine(backend=backend, caching=True, drafts=drafter.make)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    first, second = engine.answer([(LONG, params)]), engine.answer([(LONG, params)])
    assert tokens(first) == tokens(second) == tokens([plain(backend, LONG, params)])
    assert (drafter.fed("r0")[0], drafter.fed("r1")[0]) == (61, 1)
    engine.core.add(GenerationRequest("salted", LONG, params, cache_salt="another"))
    while engine.core.has_work:
        engine.core.step()
    assert drafter.fed("salted")[0] == 61
    drafter.idle()


def test_a_shorter_context_of_the_draft_model(backend: str) -> None:
    drafter = Drafter(backend, max_model_len=20, num_tokens=4)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    [output] = engine.answer([(PROMPT, GREEDY)])
    same(output, plain(backend, PROMPT, GREEDY))
    assert max(row.start + len(row.tokens) for row in drafter.runner.rows("r0")) == 20
    assert stats(output).num_draft_tokens == 8  # 4 behind 12 known tokens, 4 behind 17: the last of a draft is not fed


def test_tokens_beyond_its_vocabulary_are_not_fed(backend: str) -> None:
    drafter = Drafter(backend, vocab_size=max(PROMPT))
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    [output] = engine.answer([(PROMPT, GREEDY)])
    same(output, plain(backend, PROMPT, GREEDY))
    assert not drafter.runner.plans


def test_a_long_request_leaves_no_trace_on_the_next(backend: str) -> None:
    drafter, fresh = Drafter(backend, noise=0.1, num_blocks=24), Drafter(backend, noise=0.1, num_blocks=24)
    used = TinyEngine(backend=backend, drafts=drafter.make, num_blocks=24)
    used.answer([(LONG, GREEDY)])
    [later] = used.answer([(OTHER, SEEDED)])
    [alone] = TinyEngine(backend=backend, drafts=fresh.make, num_blocks=24).answer([(OTHER, SEEDED)])
    same(later, alone)
    assert drafter.fed("r1") == fresh.fed("r0")
    assert stats(later) == stats(alone)


class Interrupted:
    """A runner that is interrupted once, after `good` steps."""

    def __init__(self, inner: object, good: int) -> None:
        self.inner, self.left = inner, good

    def execute(self, plan: StepPlan) -> StepResult:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        return self.inner.execute(plan)  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("good", [0, 1, 4, 8])
def test_an_interrupt_while_drafting_costs_the_drafts_only(backend: str, good: int) -> None:
    drafter = Drafter(backend, noise=0.1)
    engine = TinyEngine(backend=backend, drafts=drafter.make)
    drafter.model._runner = Interrupted(drafter.runner, good)
    engine.add("a", PROMPT, GREEDY)
    engine.add("b", OTHER, SEEDED)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    same(engine.outputs["a"], plain(backend, PROMPT, GREEDY))
    same(engine.outputs["b"], plain(backend, OTHER, SEEDED))
    assert engine.core.stats().num_draft_tokens > 0
    drafter.idle()
