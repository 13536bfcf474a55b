"""The usual step's short ways give what the general ones give."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scheduling_loop import Loop, request, right

from slipstream.engine import runner, scheduler
from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.engine.request import Request
from slipstream.engine.steady import steady_rows
from slipstream.kernels.cpu import cpu_kernels
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import plain_draw

pytestmark = pytest.mark.fast


def sometimes(each: Request) -> list[int]:
    return right(2)(each) if len(each.tokens) % 4 == 0 else []


def workload(seed: int) -> tuple[list[StepPlan], int]:
    """Every plan of a random workload with too few blocks, and how many were steady."""
    rng = random.Random(seed)
    loop = Loop(rng.choice((14, 40)), rng.random() < 0.5, drafts=sometimes if rng.random() < 0.3 else None)
    waiting = [
        request(str(i), rng.randint(1, 12), rng.randint(1, 16), first=rng.randint(0, 6), **rng.choice(KINDS))
        for i in range(8)
    ]
    plans: list[StepPlan] = []
    while waiting or loop.scheduler.has_unfinished:
        if waiting and (rng.random() < 0.2 or not loop.scheduler.has_unfinished):
            loop.add(waiting.pop())
        if rng.random() < 0.02:
            loop.scheduler.abort(str(rng.randint(0, 7)), loop.now)
            loop.scheduler.drain()
            continue
        plans.append(loop.plan())
        if rng.random() < 0.05:
            loop.scheduler.discard(plans[-1])
            continue
        loop.apply(plans[-1])
    return plans, sum(all(len(row.tokens) == 1 for row in plan.rows) for plan in plans)


KINDS: tuple[dict[str, object], ...] = ({}, {"repetition_penalty": 1.5}, {"prompt_logprobs": 1}, {"logprobs": 1})


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_those_of_the_general_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, decodes = workload(seed)
    monkeypatch.setattr(scheduler, "steady_rows", lambda *_: None)
    expected, _ = workload(seed)
    assert found == expected
    assert decodes > 0


def test_it_is_for_decodes_that_have_room() -> None:
    loop = Loop(2)
    each = request("a", 3, 6)
    loop.add(each)
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 8, 0.0) is None  # nothing of it is computed
    loop.step()
    rows = steady_rows([each], loop.scheduler.queue, loop.kv, 8, 0.0)
    assert rows is not None
    assert [(row.start, row.tokens, row.num_logits, row.samples) for row in rows] == [(3, (each.tokens[3],), 1, True)]
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 0, 0.0) is None
    other = Loop()
    other.add(request("b", 3, 6))
    assert steady_rows([each], other.scheduler.queue, loop.kv, 8, 0.0) is None
    loop.step()
    assert (len(each.blocks), loop.kv.num_free) == (1, 1)
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 8, 0.0) is not None
    assert (len(each.blocks), loop.kv.num_free) == (2, 0)  # reserved on the way
    each.draft = (1, 2)
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 2, 0.0) is None  # the rule says which drafts are cut
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 3, 0.0) is not None
    each.draft = ()
    each.tokens += [1] * 4
    each.computed += 4
    assert steady_rows([each], loop.scheduler.queue, loop.kv, 8, 0.0) is None  # no block is left


def plain_row(index: int, tokens: tuple[int, ...], **params: object) -> PlanRow:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    own = RowSampling(sampling, 7 * index, 2, (), plain=plain_draw(sampling, 7 * index))
    return PlanRow(f"r{index}", tokens, 2 + index, (0, 1), 0, 1, True, own)


def test_plain_rows_draw_the_same_tokens() -> None:
    ops = cpu_kernels(1).sampling
    assert ops is not None
    rows = (
        plain_row(0, (5,), temperature=0.0),
        plain_row(1, (5, 6), temperature=0.7, top_p=0.9),
        plain_row(2, (4,), temperature=1.5, top_k=5, min_p=0.01),
    )
    logits = np.random.default_rng(3).normal(size=(3, 300)).astype(np.float32)
    found = runner._sample_plain(rows, logits, ops)
    assert found == runner._sample(rows, logits, None, ops)
    assert found == runner._sample(rows, logits, None, None)
    assert runner._sample_plain(rows, logits, None) is None
    assert runner._sample_plain(rows[:2], logits, ops) is None
    logits[1, 4] = np.nan
    assert runner._sample_plain(rows, logits, ops) is None  # the general way says which row and why


def test_plain_drafts_are_verified_alike() -> None:
    ops = cpu_kernels(1).sampling
    assert ops is not None
    logits = np.random.default_rng(3).normal(size=(8, 30)).astype(np.float32)
    drafts = ((), (9, 8, 7), (3,), ())
    rows = [
        replace(plain_row(i, (5, *draft), temperature=0.5), num_draft=len(draft), num_logits=1 + len(draft))
        for i, draft in enumerate(drafts)
    ]
    for _ in range(4):  # from drafts that are wrong to ones that are right, a token at a time
        found = runner._sample_plain(rows, logits, ops)
        assert found is not None
        assert found == runner._sample(rows, logits, None, ops)
        rows = [
            replace(row, tokens=(5, *(*answer.tokens, *row.tokens[1 + len(answer.tokens) :])[: row.num_draft]))
            for row, answer in zip(rows, found, strict=True)
        ]
    assert [answer.accepted for answer in found] == [len(draft) for draft in drafts]


@pytest.mark.parametrize(
    "row",
    [
        replace(plain_row(0, (5, 6)), num_draft=1, num_logits=2, draft_probs=(((6, 1.0),),)),
        replace(plain_row(0, (5, 6)), num_draft=0, num_logits=2),
        replace(plain_row(0, (5, 6)), samples=False),
        plain_row(0, (5,), logprobs=0),
        plain_row(0, (5,), prompt_logprobs=0),
        plain_row(0, (5,), min_tokens=1),
        plain_row(0, (5,), logit_bias={3: 1.0}),
        plain_row(0, (5,), presence_penalty=0.5),
        plain_row(0, (5,), allowed_token_ids=(3, 4)),
    ],
)
def test_other_rows_are_not_plain(row: PlanRow) -> None:
    ops = cpu_kernels(1).sampling
    assert runner._sample_plain((row,), np.zeros((1, 8), np.float32), ops) is None
