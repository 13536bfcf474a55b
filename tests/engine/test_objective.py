"""What the objective leaves for prompts: exact, with a cost model that knows."""

from __future__ import annotations

from math import inf

import pytest
from core_fakes import Bench
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_fakes import sequential
from scheduling_loop import KnownCost, Loop, request, right

from slipstream.engine.cost_model import NO_WORK, LinearCostModel, StepWork, plan_work, work_of
from slipstream.engine.objective import PromptRoom, allowed_seconds
from slipstream.engine.request import Request

STREAMS = work_of([(99, 1)] * 4)


@pytest.mark.parametrize(
    ("objective", "alone", "drafting", "allowed"),
    [
        (None, 0.5, 0.5, inf),
        (0.1, 0.5, 0.0, 0.1),
        (0.1, 0.5, 0.03, 0.07),
        ("auto", None, 0.0, 0.2),
        ("auto", 0.05, 0.0, 0.2),
        ("auto", 0.3, 0.0, 0.6),
        ("auto", 0.03, 0.05, 0.15),
        ("auto", 0.3, 0.1, 0.7),
    ],
)
def test_allowed_seconds(objective: float | None, alone: float | None, drafting: float, allowed: float) -> None:
    assert allowed_seconds(objective, alone, drafting) == pytest.approx(allowed)


def test_a_chunk_is_the_largest_that_fits() -> None:
    cost = KnownCost(step=0.004, token=0.001, row=0.002, context=1e-5, pair=1e-7)
    for start, wanted in ((0, 1000), (1000, 1000), (0, 20)):
        room = PromptRoom(cost, 0.1, STREAMS, min_chunk=16)
        chunk = room.limit(start, wanted)
        assert 16 <= chunk <= wanted
        assert cost.estimate(STREAMS.with_row(start, chunk)) <= 0.1  # type: ignore[operator]
        assert chunk == wanted or cost.estimate(STREAMS.with_row(start, chunk + 1)) > 0.1  # type: ignore[operator]
    assert PromptRoom(KnownCost(token=0.001), 0.1, STREAMS).limit(0, 1000) == 96
    assert PromptRoom(KnownCost(token=0.001), 0.1, STREAMS, drafting=0.05).limit(0, 1000) == 46


def test_where_nothing_decodes_or_is_asked_there_is_no_bound() -> None:
    slow = KnownCost(token=1.0)
    assert PromptRoom(slow, 0.1, NO_WORK).limit(0, 1000) == 1000
    assert PromptRoom(slow, None, STREAMS).limit(0, 1000) == 1000


def test_the_first_chunk_advances_whatever_it_costs_and_later_ones_wait() -> None:
    room = PromptRoom(KnownCost(token=1.0), 0.1, STREAMS, min_chunk=16)
    assert room.limit(0, 0) == 0
    assert (room.limit(0, 1000), room.limit(0, 3)) == (16, 3)
    room.take(0, 16)
    assert (room.limit(0, 1000), room.limit(0, 1)) == (0, 0)


def test_chunks_share_the_room() -> None:
    room = PromptRoom(KnownCost(token=0.001, row=0.01), 0.2, STREAMS, min_chunk=16)  # 44 ms of it are taken
    assert room.limit(0, 50) == 50
    room.take(0, 50)
    assert room.limit(0, 70) == 70
    room.take(0, 70)
    assert room.limit(0, 1) == 1  # 184 ms so far: what is short may be short
    assert room.limit(0, 1000) == 0  # but 15 tokens of a long one are no chunk to begin
    assert PromptRoom(KnownCost(token=0.001, row=0.01), 0.2, STREAMS).limit(0, 1000) == 146


def test_a_chunk_goes_no_farther_than_the_estimates() -> None:
    assert PromptRoom(KnownCost(most_tokens=70), 0.1, STREAMS).limit(0, 1000) == 66
    assert PromptRoom(KnownCost(most_tokens=2), 0.1, STREAMS, min_chunk=16).limit(0, 1000) == 16
    unknown = LinearCostModel()
    assert PromptRoom(unknown, "auto", STREAMS, min_chunk=16).limit(0, 3590) == 60


def test_a_margin_makes_chunks_smaller() -> None:
    cost = KnownCost(token=0.001)
    cost.margin = 2.0
    assert PromptRoom(cost, 0.1, STREAMS).limit(0, 1000) == 46


class Timed(Loop):
    """Every step takes what the cost says; `seconds` has those in which something decoded."""

    def __init__(self, true: KnownCost, **settings: object) -> None:
        super().__init__(blocks=2000, **settings)  # type: ignore[arg-type]
        self.true = true
        self.prompts: list[tuple[int, float, float]] = []  # tokens of prompts beside decodes; seconds without, with

    def step(self) -> list[tuple[str, int, int]]:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        # The last token of a prompt that is computed but for it is fed as a decode's is, whatever the step takes.
        decodes = [row for row in plan.rows if row.start >= max(1, row.sampling.num_prompt_tokens - 1)]
        alone = work_of((row.start, len(row.tokens)) for row in decodes)
        work = plan_work(plan)
        took = self.true.estimate(work)
        assert took is not None
        self.now += took
        if decodes:
            without = self.true.estimate(alone)
            assert without is not None
            self.prompts.append((work.tokens - alone.tokens, without, took))
        self.apply(plan)
        return [(row.request_id, row.start, len(row.tokens)) for row in plan.rows]


COSTS = st.builds(
    KnownCost,
    step=st.floats(0, 0.05),
    token=st.floats(1e-5, 2e-3),
    row=st.floats(0, 5e-3),
    context=st.floats(0, 1e-5),
    pair=st.floats(0, 1e-6),
)


@settings(max_examples=40, deadline=None)
@given(
    cost=COSTS,
    objective=st.one_of(st.just("auto"), st.floats(0.01, 0.5)),
    prompts=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    streams=st.integers(1, 6),
    drafts=st.integers(0, 3),
)
def test_no_step_beside_decodes_takes_longer_than_allowed_and_prompts_advance(
    cost: KnownCost, objective: float, prompts: list[int], streams: int, drafts: int
) -> None:
    loop = Timed(cost, cost_model=cost, tpot_objective=objective, drafts=right(drafts) if drafts else None)
    loop.add(*(request(f"stream {i}", 3 + i, 60) for i in range(streams)))
    loop.step()
    long = [request(f"prompt {i}", length, 2, first=i) for i, length in enumerate(prompts)]
    loop.add(*long)
    while any(each.num_output_tokens == 0 for each in long):
        before = sum(each.computed for each in long)
        loop.step()
        assert sum(each.computed for each in long) > before
        tokens, alone, took = loop.prompts[-1]
        if took > allowed_seconds(objective, alone, 0.0) * (1 + 1e-9):
            assert tokens <= 16
    loop.finish_all()
    for each in long:
        assert each.output_token_ids == sequential(each.prompt_token_ids, 2)


def learning(true: KnownCost, streams: int = 8, before: int = 30, prompt: int = 900) -> list[float]:
    """Seconds of the steps beside a long prompt, from its first chunk on, by a model that has seen decodes at most."""
    loop = Timed(true, tpot_objective="auto", max_num_batched_tokens=4096)
    loop.add(*(request(f"stream {i}", 1, 400) for i in range(streams)))
    for _ in range(before):
        loop.step()
    loop.prompts.clear()
    long = request("long", prompt, 1)
    loop.add(long)
    while not long.finished:
        loop.step()
    return [took for _, _, took in loop.prompts]


@pytest.mark.parametrize("before", [1, 3, 8, 30, 200])
@pytest.mark.parametrize("streams", [1, 8])
def test_the_first_long_prompt_finds_a_model_that_has_seen_decodes_only(before: int, streams: int) -> None:
    true = KnownCost(step=0.01, token=0.001, row=0.001, context=1e-6, pair=1e-7)
    took = learning(true, streams, before)
    assert max(took) <= 0.2 * 1.05
    assert took[0] <= 0.1  # 64 tokens: nothing is known of prompts
    assert len(took) <= 14  # and soon about 170 at a time, of 900


def test_on_a_slow_machine_the_first_chunk_is_long_but_later_ones_are_not() -> None:
    true = KnownCost(step=0.05, token=0.02, row=0.01, context=1e-6, pair=1e-7)
    took = learning(true, prompt=400)
    alone = true.estimate(StepWork(8, 8, 8 * 50, 0))
    assert alone is not None
    assert took[0] > 2.2 * alone
    assert max(took[1:]) <= 2.2 * alone


def test_drafting_is_part_of_what_a_stream_waits() -> None:
    loop = Loop(blocks=400, cost_model=KnownCost(token=0.001), tpot_objective=0.1)
    loop.add(request("stream", 4, 50))
    loop.step()
    loop.add(request("long", 900, 1))
    plan = loop.scheduler.plan(5.0, drafting=0.04)
    assert plan is not None
    assert [len(row.tokens) for row in plan.rows] == [1, 59]


def test_the_core_tells_how_long_drafting_took() -> None:
    def draft(each: Request) -> list[int]:
        bench.clock.now += 0.0395
        return []

    bench = Bench(blocks=400, drafts=draft, max_model_len=1000, tpot_objective=0.1)
    bench.scheduler._cost_model = KnownCost(token=0.001)
    bench.add("stream", max_tokens=50)
    bench.step()
    bench.add("long", [i % 7 for i in range(900)], max_tokens=1)
    bench.step()
    assert [len(row.tokens) for row in bench.runner.plans[-1].rows] == [1, 59]
