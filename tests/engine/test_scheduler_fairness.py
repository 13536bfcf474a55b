"""Who gives way and who may not starve; outputs do not depend on either."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_fakes import sequential
from scheduling_loop import Loop, request

from slipstream.engine.admission import AdaptiveLimit
from slipstream.engine.cost_model import LinearCostModel, work_of
from slipstream.engine.plan import StepTiming
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder
from slipstream.engine.request import RequestStatus

pytestmark = pytest.mark.fast


def test_the_youngest_is_preempted_keeps_its_output_and_recomputes() -> None:
    loop = Loop(blocks=4)
    a, b = request("a", 7, 6), request("b", 7, 6, first=3)
    loop.add(a, b)
    loop.step()
    loop.step()
    assert loop.step() == [("a", 8, 1)]
    assert (b.status, b.computed, b.blocks, b.num_output_tokens, b.stats.preemptions) == (
        RequestStatus.PREEMPTED,
        0,
        [],
        2,
        1,
    )
    loop.finish_all()
    for each in (a, b):
        assert each.output_token_ids == sequential(each.prompt_token_ids, 6)


def test_the_least_important_is_preempted_even_if_it_was_planned_already() -> None:
    loop = Loop(blocks=4, policy=PriorityOrder(None))
    less, more = request("less", 7, 6, priority=1), request("more", 7, 6, first=3)
    loop.add(less)
    loop.step()
    loop.add(more)
    loop.step()
    loop.step()
    assert loop.step()[0][0] == "more"
    assert (less.stats.preemptions, more.stats.preemptions) == (1, 0)


def test_a_preempted_request_resumes_before_newer_ones() -> None:
    loop = Loop(blocks=4)
    loop.add(request("a", 7, 3), request("b", 7, 6), request("c", 1, 1))
    order = []
    while loop.scheduler.has_unfinished:
        order += [name for name, start, _ in loop.step() if start == 0]
    assert order == ["a", "b", "b", "c"]


def test_a_protected_request_is_no_victim() -> None:
    loop = Loop(blocks=4, policy=PriorityOrder(None), max_preemptions=1)
    a, b = request("a", 7, 6, priority=1), request("b", 7, 6, first=3)
    a.protected = True
    loop.add(a, b)
    loop.finish_all()
    assert (a.stats.preemptions, b.stats.preemptions) == (0, 1)
    assert b.protected


def test_who_waited_long_is_protected_once_it_runs() -> None:
    loop = Loop(max_wait=5.0)
    late, new = request("late", 2, arrival=-9.0), request("new", 2, arrival=0.0)
    loop.add(late, new)
    loop.step()
    assert (late.protected, new.protected) == (True, False)


def test_nothing_is_admitted_that_would_fight_for_the_blocks_of_a_running_prompt() -> None:
    loop = Loop(blocks=6, max_num_batched_tokens=4)
    loop.add(request("a", 16, 1), request("b", 12, 1, first=3))
    steps = [loop.step() for _ in range(4)]
    assert steps == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 4)], [("a", 12, 4)]]
    loop.finish_all()
    assert loop.scheduler.stats().num_preempted == 0


def test_the_watermark_keeps_blocks_for_what_runs_but_not_from_a_lone_request() -> None:
    loop = Loop(blocks=8, watermark=0.5)
    loop.add(request("a", 16, 2), request("b", 4, 2))
    assert [name for name, _, _ in loop.step()] == ["a"]
    loop = Loop(blocks=8, watermark=0.5)
    loop.add(request("a", 12, 2), request("b", 4, 2))
    assert [name for name, _, _ in loop.step()] == ["a", "b"]
    loop = Loop(blocks=8, watermark=0.5)
    loop.add(request("a", 32, 1))
    assert [name for name, _, _ in loop.step()] == ["a"]


def test_frequent_preemptions_lower_the_number_of_running_requests() -> None:
    loop = Loop(blocks=10, limit=AdaptiveLimit(8, window=50, max_preemptions=2), max_num_seqs=8)
    loop.add(*(request(f"r{i}", 5, 20, first=i) for i in range(8)))
    while loop.scheduler.stats().max_num_seqs == 8:
        loop.step()
    assert loop.scheduler.stats().num_preempted >= 2
    assert loop.scheduler.stats().max_num_seqs < 8
    loop.finish_all()


def test_a_tpot_objective_shortens_chunks_beside_decodes_only() -> None:
    model = LinearCostModel(min_observations=1)
    for tokens in (1, 50, 100, 200, 300) * 4:
        model.observe(work_of([(0, tokens)]), tokens * 1e-3)
    loop = Loop(cost_model=model, tpot_objective=0.020, min_prefill_chunk=2, max_num_batched_tokens=100)
    loop.add(request("a", 60, 9))
    assert loop.step() == [("a", 0, 60)]
    loop.add(request("b", 60, 9))
    plan = loop.plan()
    chunk = {row.request_id: len(row.tokens) for row in plan.rows}
    assert chunk["a"] == 1
    assert 10 <= chunk["b"] <= 21
    result = replace(loop.model.run(plan), timing=StepTiming(forward=0.02))
    loop.scheduler.apply(plan, result, loop.now)
    plan = loop.plan()
    assert plan.rows[1].start == chunk["b"]


@pytest.mark.parametrize("ageing", [True, False])
def test_ageing_saves_a_request_from_an_endless_stream_of_important_ones(ageing: bool) -> None:
    loop = Loop(max_num_seqs=1, policy=PriorityOrder(20.0 if ageing else None))
    poor = request("poor", 4, 3, priority=2)
    loop.add(poor)
    for i in range(200):
        loop.add(request(f"vip{i}", 1, 2, arrival=float(i)))
        loop.step()
    assert poor.finished == ageing
    if ageing:
        assert poor.stats.first_scheduled is not None
        assert poor.stats.first_scheduled <= 2 * 2 * 20.0 + 5


def test_a_preempted_unimportant_request_ends_although_important_ones_keep_coming() -> None:
    loop = Loop(blocks=8, max_num_seqs=4, policy=PriorityOrder(10.0), max_preemptions=2, limit=AdaptiveLimit(4))
    poor = request("poor", 12, 16, priority=3)
    loop.add(poor)
    for i in range(300):
        loop.add(request(f"vip{i}", 6, 6, first=i, arrival=float(i)))
        loop.step()
        if poor.finished:
            break
    assert poor.finish_reason == "length"
    assert poor.output_token_ids == sequential(poor.prompt_token_ids, 16)
    assert 1 <= poor.stats.preemptions <= 2


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("policy", [FirstComeFirstServed(), PriorityOrder()])
@pytest.mark.parametrize("blocks", [9, 12, 200])
@pytest.mark.parametrize("budget", [1, 3, 16, 512])
def test_outputs_do_not_depend_on_chunks_cache_pool_or_order(
    caching: bool, policy: object, blocks: int, budget: int
) -> None:
    loop = Loop(blocks=blocks, caching=caching, policy=policy, max_num_batched_tokens=budget, max_num_seqs=5)
    requests = [request(f"r{i}", 5 + 3 * (i % 4), 8, first=i % 3, priority=i % 2) for i in range(8)]
    loop.add(*requests)
    loop.finish_all()
    for each in requests:
        assert each.output_token_ids == sequential(each.prompt_token_ids, 8)
        assert each.finish_reason == "length"
    if blocks == 9 and budget == 512:
        assert loop.scheduler.stats().num_preempted > 0


def test_stats_of_a_request_and_of_the_scheduler() -> None:
    loop = Loop(max_num_seqs=1)
    a, b = request("a", 3, 2, arrival=0.5), request("b", 3, 2, arrival=0.5)
    loop.add(a, b)
    loop.step()
    stats = loop.scheduler.stats()
    assert (stats.step, stats.num_running, stats.num_waiting, stats.max_num_seqs, stats.kv.used) == (1, 1, 1, 1, 1)
    loop.finish_all()
    assert (a.stats.queue_time, a.stats.ttft, a.stats.tpot(2)) == (0.5, 0.5, 1.0)
    assert (b.stats.queue_time, b.stats.first_token, b.stats.finished) == (2.5, 3.0, 4.0)
