"""Refusals, aborts, deadlines, failures and answers that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_fakes import logprob, sequential
from scheduling_loop import KnownCost, Loop, request, right

from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.queue import QueueFullError
from slipstream.engine.request import RequestStatus
from slipstream.engine.rows import build_row, check_answer
from slipstream.engine.scheduler import RequestUpdate
from slipstream.errors import EngineError, InvalidParamsError

pytestmark = pytest.mark.fast


def test_refusals_at_the_door_change_nothing() -> None:
    loop = Loop(blocks=2, max_queued=1)
    with pytest.raises(RequestTooLargeError, match="pool has 2"):
        loop.add(request("big", 9, 1))
    loop.add(request("a", 2))
    with pytest.raises(InvalidParamsError, match="request a"):
        loop.add(request("a", 2))
    with pytest.raises(QueueFullError):
        loop.add(request("b", 2))
    assert loop.scheduler.stats().num_waiting == 1
    loop.step()
    loop.add(request("b", 2))


def test_abort_of_a_waiting_and_of_a_running_request() -> None:
    loop = Loop(max_num_seqs=1)
    a, b = request("a", 5), request("b", 5)
    loop.add(a, b)
    loop.step()
    for each in (a, b):
        update = loop.scheduler.abort(each.id, 9.0)
        assert update == RequestUpdate(each, finish_reason="abort")
        assert (each.status, each.finish_reason, each.stats.finished) == (RequestStatus.FINISHED, "abort", 9.0)
    assert loop.kv.usage().used == 0
    assert (loop.scheduler.plan(9.0), loop.scheduler.abort("a", 9.0), loop.scheduler.abort("?", 9.0)) == (
        None,
        None,
        None,
    )


def test_abort_while_the_step_runs_keeps_the_blocks_until_it_is_applied() -> None:
    loop = Loop()
    a, b = request("a", 5), request("b", 5)
    loop.add(a, b)
    plan = loop.plan()
    assert loop.scheduler.abort("a", 1.0) is not None
    assert (a.blocks, loop.kv.refs(0)) == ([0, 1], 1)
    with pytest.raises(InvalidParamsError):
        loop.add(request("a", 5))
    updates = loop.apply(plan)
    assert [update.request.id for update in updates] == ["b"]
    assert (a.blocks, a.output_token_ids, loop.kv.usage().used) == ([], [], 2)
    loop.add(request("a", 5))


def test_abort_of_a_running_request_that_is_not_in_the_step_releases_at_once() -> None:
    loop = Loop(cost_model=KnownCost(token=1.0), tpot_objective=3.0, max_prefill_chunk=2)
    requests = request("a", 1, 9), request("b", 9), request("c", 9)
    loop.add(*requests)
    assert loop.step() == [("a", 0, 1), ("b", 0, 2), ("c", 0, 2)]
    plan = loop.plan()
    assert [row.request_id for row in plan.rows] == ["a", "b"]
    loop.scheduler.abort("c", 1.0)
    assert requests[2].blocks == []
    loop.apply(plan)


def test_finish_for_a_stop_string() -> None:
    loop = Loop()
    a = request("a", 5)
    loop.add(a)
    loop.step()
    assert loop.scheduler.finish("a", "stop", 2.0) == RequestUpdate(a, finish_reason="stop")
    assert (a.finish_reason, a.stop_token, a.num_output_tokens) == ("stop", None, 1)


@pytest.mark.parametrize("running", [True, False])
def test_deadlines(running: bool) -> None:
    loop = Loop(max_num_seqs=1)
    first, second = request("a", 2, 50), request("b", 2, 50)
    (first if running else second).deadline = 3.0
    loop.add(first, second)
    loop.step()
    loop.step()
    updates = loop.apply(loop.plan())
    expired = first if running else second
    assert [(u.request, u.finish_reason) for u in updates if u.finish_reason] == [(expired, "deadline")]
    assert expired.stats.finished == 3.0
    assert expired.num_output_tokens == (2 if running else 0)


def test_an_expired_last_request_is_found_by_drain() -> None:
    loop = Loop()
    a = request("a", 2, deadline=0.5)
    loop.add(a)
    assert loop.scheduler.plan(1.0) is None
    assert loop.scheduler.drain() == [RequestUpdate(a, finish_reason="deadline")]
    assert loop.scheduler.drain() == []


def test_an_expired_request_is_not_lost_when_the_step_fails() -> None:
    loop = Loop()
    a, b = request("a", 2, deadline=0.5), request("b", 2)
    loop.add(a, b)
    plan = loop.plan()
    loop.scheduler.discard(plan)
    loop.scheduler.finish("b", "error", 1.0)
    assert loop.scheduler.has_unfinished
    assert loop.scheduler.plan(2.0) is None
    assert loop.scheduler.drain() == [RequestUpdate(a, finish_reason="deadline")]
    assert not loop.scheduler.has_unfinished


def test_an_error_of_one_row_ends_only_that_request() -> None:
    loop = Loop()
    a, b = request("a", 5), request("b", 5)
    loop.add(a, b)
    loop.model.fail = lambda name: name == "a"
    loop.finish_all()
    assert (a.finish_reason, a.error, a.blocks) == ("error", "boom", [])
    assert b.output_token_ids == sequential(b.prompt_token_ids, 4)


def test_a_discarded_step_is_planned_again() -> None:
    loop = Loop(caching=True)
    a, b = request("a", 5), request("b", 5)
    loop.add(a, b)
    plan = loop.plan()
    loop.scheduler.abort("b", 1.0)
    loop.scheduler.discard(plan)
    loop.kv.check(loop.scheduler.requests)
    assert b.blocks == []
    assert loop.plan().rows == plan.rows[:1]


def test_one_step_at_a_time_and_only_its_own_result() -> None:
    loop = Loop()
    loop.add(request("a", 5))
    plan = loop.plan()
    result = loop.model.run(plan)
    with pytest.raises(EngineError, match="step 1 was planned but"):
        loop.scheduler.plan(2.0)
    with pytest.raises(EngineError, match="does not answer"):
        loop.scheduler.apply(plan, replace(result, step=7), 2.0)
    with pytest.raises(EngineError, match="does not answer"):
        loop.scheduler.apply(plan, replace(result, rows=()), 2.0)
    loop.scheduler.apply(plan, result, 2.0)
    with pytest.raises(EngineError, match="does not answer"):
        loop.scheduler.apply(plan, result, 2.0)
    with pytest.raises(EngineError, match="not in flight"):
        loop.scheduler.discard(plan)


@pytest.mark.parametrize(
    "change",
    [{"request_id": "b"}, {"accepted": 3}, {"accepted": -1}, {"tokens": ()}, {"tokens": (1, 2, 3, 4), "accepted": 2}],
)
def test_answers_that_do_not_fit_their_row(change: dict[str, object]) -> None:
    loop = Loop(drafts=right(2))
    loop.add(request("a", 5))
    loop.step()
    plan = loop.plan()
    row, answer = plan.rows[0], loop.model.run(plan).rows[0]
    check_answer(row, answer)
    with pytest.raises(EngineError, match="request a: the runner's answer"):
        check_answer(row, replace(answer, **change))  # type: ignore[arg-type]


def test_accepting_another_draft_than_the_one_given() -> None:
    loop = Loop(drafts=right(2))
    loop.add(request("a", 5))
    loop.step()
    plan = loop.plan()
    answer = loop.model.run(plan).rows[0]
    wrong = replace(answer, tokens=((answer.tokens[0] + 1) % 7, *answer.tokens[1:]))
    with pytest.raises(EngineError):
        check_answer(plan.rows[0], wrong)


def test_missing_prompt_logprobs() -> None:
    loop = Loop()
    loop.add(request("a", 5, prompt_logprobs=0))
    plan = loop.plan()
    with pytest.raises(EngineError):
        check_answer(plan.rows[0], replace(loop.model.run(plan).rows[0], prompt_logprobs=()))


@pytest.mark.parametrize("num_tokens", [0, 6])
def test_a_row_feeds_at_least_one_token_and_no_more_than_there_are(num_tokens: int) -> None:
    with pytest.raises(EngineError, match=f"{num_tokens} tokens were granted"):
        build_row(request("a", 5), num_tokens)


def test_prompt_logprobs_of_a_prompt_that_is_preempted_half_way_are_collected_anew() -> None:
    loop = Loop(blocks=6, max_prefill_chunk=2)
    first, second = request("a", 4, 20), request("b", 16, 2, prompt_logprobs=0)
    loop.add(first, second)
    while second.stats.preemptions == 0:
        collected = len(second.prompt_logprobs)
        loop.step()
    assert 0 < collected < 15
    assert second.prompt_logprobs == []
    loop.finish_all()
    prompt = list(second.prompt_token_ids)
    assert second.prompt_logprobs == [logprob(prompt[:i], prompt[i]) for i in range(1, 16)]
    assert second.output_token_ids == sequential(prompt, 2)
