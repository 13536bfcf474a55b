"""A draft head, composed with whatever ends, moves or restricts a request: never another token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from replay import Replay
from tiny_engine import BACKENDS, spell
from tiny_head import Head, SpyHead

from slipstream import SamplingParams
from slipstream.engine.head_runner import HeadRow
from slipstream.engine.outputs import CompletionStats, RequestOutput
from slipstream.engine.plan import RowResult
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from slipstream.errors import InvalidParamsError
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
ENDS = {
    "stop string": replace(SEEDED, stop=("unset",)),
    "one token": replace(GREEDY, max_tokens=1),
    "two tokens": replace(GREEDY, max_tokens=2),
    "five tokens": replace(SEEDED, max_tokens=5),
    "context end": replace(GREEDY, max_tokens=None),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def plain(head: Head, prompt: tuple[int, ...], params: SamplingParams, **settings: object) -> RequestOutput:
    [output] = head.plain(**settings).answer([(prompt, params)])
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
def test_a_head_that_foresees_the_target_is_always_right(kind: str) -> None:
    """Drafts are drawn as the request's own tokens are, at their positions: equal logits give equal tokens."""
    head = Head("reference", right=True, num_tokens=4)
    engine = head.engine()
    [output] = engine.answer([(PROMPT, KINDS[kind])])
    same(output, plain(head, PROMPT, KINDS[kind]))
    totals = engine.core.stats()
    assert totals.num_accepted_tokens == totals.num_draft_tokens > 0
    head.idle()


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_whose_numbers_are_rounded_is_mostly_right(kind: str) -> None:
    head = Head("cpu", right=True, num_tokens=4)
    engine = head.engine()
    [output] = engine.answer([(PROMPT, KINDS[kind])])
    same(output, plain(head, PROMPT, KINDS[kind]))
    totals = engine.core.stats()
    assert totals.num_accepted_tokens > 0.7 * totals.num_draft_tokens > 0
    head.idle()


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_errs_changes_nothing(backend: str, kind: str, right: bool) -> None:
    """With chunked prefill; the right one cannot draft two tokens of three."""
    head = Head(backend, right=right, ids=range(0, 99, 3))
    engine = head.engine(max_num_batched_tokens=7)
    requests = [(PROMPT, KINDS[kind]), (OTHER, GREEDY), (LONG, SEEDED)]
    for output, each in zip(engine.answer(requests), requests, strict=True):
        same(output, plain(head, *each))
    totals = engine.core.stats()
    assert totals.num_accepted_tokens < totals.num_draft_tokens
    head.idle()


@pytest.mark.parametrize("kind", ENDS)
def test_ends_inside_a_draft(backend: str, kind: str) -> None:
    head = Head(backend, right=True, num_tokens=5)
    params = ENDS[kind]
    if kind == "stop string":
        whole = plain(head, PROMPT, replace(params, stop=()))
        params = replace(params, stop=(whole.outputs[0].text[9:11],))
    engine = head.engine()
    [output] = engine.answer([(PROMPT, params)])
    same(output, plain(head, PROMPT, params))
    head.idle()


def test_end_of_sequence_inside_a_draft(backend: str) -> None:
    head = Head(backend, right=True, num_tokens=5)
    eos = (plain(head, PROMPT, SEEDED).outputs[0].token_ids[8],)
    [output] = head.engine(eos=eos).answer([(PROMPT, SEEDED)])
    same(output, plain(head, PROMPT, SEEDED, eos=eos))
    assert output.outputs[0].finish_reason == "stop"
    head.idle()


def test_every_position_is_shown_once_with_its_own_state(backend: str) -> None:
    """The prompt at first, then what was verified."""
    head = Head(backend, num_tokens=1)
    [output] = head.engine().answer([(PROMPT, replace(GREEDY, max_tokens=8))])
    known = [*PROMPT, *output.outputs[0].token_ids]
    states, at = _states(head, known), 0
    for row in head.runner.rows("r0"):
        end = at + len(row.plan.tokens)
        assert (row.plan.start, row.shift) == (at, 1)
        assert row.plan.tokens == tuple(known[at + 1 : end + 1])
        np.testing.assert_array_equal(row.states, states[at:end])
        at = end
    assert head.fed("r0")[0] == len(PROMPT)
    assert at > len(PROMPT) + 4


def test_drafted_tokens_bring_what_the_head_made_and_are_shown_again_when_verified(backend: str) -> None:
    head = Head(backend, right=True, num_tokens=3)
    head.engine().answer([(PROMPT, replace(GREEDY, max_tokens=13))])
    steps = list(zip(head.runner.rows("r0"), head.runner.made, strict=True))
    own = [row for row, _ in steps if len(row.plan.tokens) == 1]
    for (row, _), (_, [before]) in zip(steps[1:], steps, strict=False):
        if len(row.plan.tokens) == 1:
            np.testing.assert_array_equal(row.states, before[None])
    if backend == "reference":  # the other one errs sometimes
        assert head.fed("r0") == [11, 1, 1, 4, 1, 1, 4, 1, 1]
        assert [row.plan.start for row, _ in steps] == [0, 11, 12, 11, 15, 16, 15, 19, 20]
    assert len(own) > 4


def _states(head: Head, tokens: Sequence[int]) -> np.ndarray:
    """Of the target at every position, in one step."""
    seen = []
    engine = replace_states(head, seen.append)
    engine.answer([(tuple(tokens), SamplingParams(temperature=0.0, max_tokens=1))])
    return seen[0]


def replace_states(head: Head, see):  # type: ignore[no-untyped-def]
    from tiny_engine import TinyEngine

    return TinyEngine(head.target, backend=head.backend, states=lambda plan, states: see(states.copy()))


def test_drafts_are_those_of_the_head_over_the_whole_text(backend: str) -> None:
    """Catching up in pieces over a paged cache, rows in batches, against one pass from the start for every draft."""
    head = Head(backend, num_tokens=1)
    engine = head.engine(max_num_batched_tokens=5)
    outputs = engine.answer([(PROMPT, GREEDY), (OTHER, SEEDED)])
    for name, output in zip(("r0", "r1"), outputs, strict=True):
        known = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        states = _states(head, known)
        drafted = [
            result.tokens
            for step, results in zip(head.runner.steps, head.runner.results, strict=True)
            for row, result in zip(step, results, strict=True)
            if row.plan.request_id == name and result.tokens
        ]
        rows = [row for row in head.runner.rows(name) if row.plan.samples]
        assert len(rows) > 5
        for row, tokens in zip(rows, drafted, strict=True):
            end = row.plan.start + len(row.plan.tokens)
            blocks = tuple(range(-(-end // 4)))
            plan = replace(row.plan, start=0, tokens=tuple(known[1 : end + 1]), blocks=blocks)
            [again], _ = head.runner._runner.run([HeadRow(plan, 1, states[:end])])
            assert again.tokens == tokens


class Now(Replay):
    """Finds what is right at some lengths of the sequence, and nothing at others."""

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        found = super().propose(wanted)
        return [
            draft if len(self.open_sequences[key]) // 4 % 2 == 0 else NOTHING
            for (key, _), draft in zip(wanted, found, strict=True)
        ]


@pytest.mark.parametrize("most", [512, 3])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_where_a_lookup_drafts_the_head_catches_up_later(backend: str, params: SamplingParams, most: int) -> None:
    """Or begins anew with the last positions, if there were more than are kept."""
    head = Head(backend, right=True, num_tokens=3, most=most)
    expected = plain(head, PROMPT, params)
    head._lookup = Now({"r0": [*PROMPT, *expected.outputs[0].token_ids]}, wrong=0.0)
    [output] = head.engine().answer([(PROMPT, params)])
    same(output, expected)
    assert any(count > 1 for count in head.fed("r0")[1:])
    assert (max(head.fed("r0")) > 3) == (most > 3)
    assert {row.shift for row in head.runner.rows("r0")} != {1} or most > 3
    assert (stats(output).acceptance_rate or 0) > 0.7
    head.idle()


@pytest.mark.parametrize("mode", ["ngram", "draft_head", "off"])
def test_a_request_may_have_one_drafter_alone(backend: str, mode: str) -> None:
    loop = (7, 8, 9, 10, 11, 12) * 4
    head = Head(backend, lookup=NgramProposer(NgramOptions(min_match=1)))
    engine = head.engine()
    engine.add("a", loop, GREEDY, speculative=RequestSpeculation(mode))  # type: ignore[arg-type]
    engine.step()
    assert bool(head.states._kept) == (mode == "draft_head")
    engine.run()
    same(engine.outputs["a"], plain(head, loop, GREEDY))
    drafted = stats(engine.outputs["a"]).num_draft_tokens
    assert (drafted > 0) == (mode != "off")
    assert len(head.runner.steps) == (drafted if mode == "draft_head" else 0)
    head.idle()


def test_an_engine_without_a_head_refuses_to_draft_with_one(backend: str) -> None:
    engine = Head(backend).plain()
    with pytest.raises(InvalidParamsError, match=r"'draft_head', but this engine drafts nothing.*draft_head"):
        engine.add("a", PROMPT, GREEDY, speculative=RequestSpeculation("draft_head"))


@pytest.mark.parametrize("room", [4, 20])
def test_small_steps_of_the_head(backend: str, room: int) -> None:
    head = Head(backend, max_step_tokens=room)
    engine = head.engine()
    requests = [(PROMPT, GREEDY), (OTHER, SEEDED), (LONG, SEEDED)]
    for output, each in zip(engine.answer(requests), requests, strict=True):
        same(output, plain(head, *each))
    assert max(sum(len(row.plan.tokens) for row in step) for step in head.runner.steps) <= room
    assert engine.core.stats().num_draft_tokens > 0
    head.idle()


def test_preemption_in_the_middle_of_drafts(backend: str) -> None:
    """What is computed again is the same, so the head goes on where it was."""
    requests = [(PROMPT, GREEDY), (OTHER, SEEDED), (PROMPT[3:], GREEDY)]
    head = Head(backend, right=True)
    engine = head.engine(num_blocks=14)
    for output, each in zip(engine.answer(requests), requests, strict=True):
        same(output, plain(head, *each))
    assert engine.core.stats().num_preemptions > 0
    assert engine.core.stats().num_accepted_tokens > 0
    for name, (prompt, _) in zip(("r0", "r1", "r2"), requests, strict=True):
        assert {row.shift for row in head.runner.rows(name)} == {1}
        assert sum(count > 4 for count in head.fed(name)) == 1, prompt
    head.idle()


@pytest.mark.parametrize("num_blocks", [1, 4, 9, 12])
def test_no_blocks_for_drafting_no_draft(backend: str, num_blocks: int) -> None:
    requests = [(PROMPT, GREEDY), (OTHER, SEEDED), (LONG, GREEDY)]
    head = Head(backend, right=True, num_blocks=num_blocks)
    engine = head.engine()
    for output, each in zip(engine.answer(requests), requests, strict=True):
        same(output, plain(head, *each))
    assert (engine.core.stats().num_draft_tokens > 0) == (num_blocks >= 4)
    head.idle()


def test_abort_while_a_prompt_or_a_draft_is_under_way(backend: str) -> None:
    head = Head(backend)
    engine = head.engine(max_num_batched_tokens=8)
    engine.add("a", PROMPT, GREEDY)
    engine.add("b", OTHER, SEEDED)
    engine.add("c", LONG, SEEDED)
    for _ in range(4):
        engine.step()
    assert "c" in head.states._kept
    engine.abort("c")
    engine.abort("a")
    assert set(head.states._kept) == {"b"}
    engine.run()
    same(engine.outputs["b"], plain(head, OTHER, SEEDED))
    head.idle()


def test_what_came_from_the_prefix_cache_is_not_shown(backend: str) -> None:
    head = Head(backend, right=True)
    engine = head.engine(caching=True)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    first, second = engine.answer([(LONG, params)]), engine.answer([(LONG, params)])
    assert [each.outputs[0].token_ids for each in first] == [each.outputs[0].token_ids for each in second]
    assert (head.fed("r0")[0], head.fed("r1")[0]) == (60, 4)
    assert [row.shift for row in head.runner.rows("r1")] == [57] * len(head.runner.rows("r1"))
    assert (stats(second[0]).acceptance_rate or 0) > 0.7
    head.idle()


def test_a_shorter_context_of_the_head(backend: str) -> None:
    head = Head(backend, max_model_len=20, num_tokens=4)
    [output] = head.engine().answer([(PROMPT, GREEDY)])
    same(output, plain(head, PROMPT, GREEDY))
    assert max(row.plan.start + len(row.plan.tokens) for row in head.runner.rows("r0")) == 20


def test_a_long_request_leaves_no_trace_on_the_next(backend: str) -> None:
    head, fresh = Head(backend, num_blocks=24), Head(backend, num_blocks=24)
    used = head.engine(num_blocks=24)
    used.answer([(LONG, GREEDY)])
    [later] = used.answer([(OTHER, SEEDED)])
    [alone] = fresh.engine(num_blocks=24).answer([(OTHER, SEEDED)])
    same(later, alone)
    assert head.fed("r1") == fresh.fed("r0")
    assert stats(later) == stats(alone)


class Interrupted:
    """A runner that is interrupted once, after `good` steps."""

    def __init__(self, inner: SpyHead, good: int) -> None:
        self.inner, self.left = inner, good

    def run(self, rows: Sequence[HeadRow]) -> tuple[tuple[RowResult, ...], list[np.ndarray]]:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        return self.inner.run(rows)


@pytest.mark.parametrize("good", [0, 1, 4, 8])
def test_an_interrupt_while_drafting_costs_the_drafts_only(backend: str, good: int) -> None:
    head = Head(backend, right=True)
    engine = head.engine()
    head.drafter._runner = Interrupted(head.runner, good)
    engine.add("a", PROMPT, GREEDY)
    engine.add("b", OTHER, SEEDED)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    same(engine.outputs["a"], plain(head, PROMPT, GREEDY))
    same(engine.outputs["b"], plain(head, OTHER, SEEDED))
    assert engine.core.stats().num_draft_tokens > 0
    head.idle()


def test_judged_drafts_come_with_what_they_were_drawn_from(backend: str) -> None:
    head = Head(backend, right=True)
    engine = head.engine(judge_drafts=True, seed=None)
    params = SamplingParams(temperature=1.0, max_tokens=30)
    engine.core.add(GenerationRequest("a", PROMPT, params))
    probs = []
    while engine.core.has_work:
        engine.core.step()
        probs += [each.draft_probs for each in engine.core._scheduler.requests if each.draft_probs]
    assert len(probs) > 3
    assert all(abs(sum(share for _, share in each) - 1) < 1e-6 for draft in probs for each in draft)
    head.idle()
