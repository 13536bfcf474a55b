"""Exact plans, block ids and updates of single decisions; random workloads are in test_scheduler_random.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scheduling_fakes import FakeModel, next_token, sequential

from slipstream.engine.admission import AdaptiveLimit, RequestTooLargeError
from slipstream.engine.cost_model import LinearCostModel
from slipstream.engine.plan import PlanRow, StepPlan, StepTiming
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder, QueueFullError
from slipstream.engine.request import Request, RequestStatus, make_children, make_request
from slipstream.engine.rows import build_row, check_answer
from slipstream.engine.scheduler import RequestUpdate, Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.errors import EngineError, InvalidParamsError
from slipstream.kv.manager import KVManager
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(
    name: str,
    num_prompt: int,
    max_tokens: int = 4,
    *,
    first: int = 0,
    arrival: float = 0.0,
    priority: int = 0,
    deadline: float | None = None,
    **params: object,
) -> Request:
    return make_request(
        name,
        [(first + i) % 7 for i in range(num_prompt)],
        SamplingParams(max_tokens=max_tokens, seed=0, **params),  # type: ignore[arg-type]
        max_model_len=1000,
        arrival=arrival,
        priority=priority,
        deadline=deadline,
    )


class Loop:
    """A scheduler with blocks of 4 and the fake model."""

    def __init__(
        self,
        blocks: int = 64,
        caching: bool = False,
        drafts: Callable[[Request], Sequence[int]] | None = None,
        policy: object = None,
        limit: object = None,
        cost_model: object = None,
        **settings: object,
    ) -> None:
        self.kv = KVManager(blocks, 4, caching)
        self.settings = SchedulerSettings(**({"watermark": 0.0} | settings))  # type: ignore[arg-type]
        self.scheduler = Scheduler(
            self.settings,
            self.kv,
            policy=policy,
            limit=limit,
            cost_model=cost_model,  # type: ignore[arg-type]
            proposer=Proposer(drafts) if drafts else None,
        )
        self.model = FakeModel(4, self.settings.max_num_batched_tokens, self.settings.max_num_seqs)
        self.now = 0.0

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each)

    def plan(self) -> StepPlan:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        return plan

    def apply(self, plan: StepPlan) -> list[RequestUpdate]:
        updates = self.scheduler.apply(plan, self.model.run(plan), self.now)
        self.kv.check(self.scheduler.requests)
        return updates

    def step(self) -> list[tuple[str, int, int]]:
        """(request, start, number of tokens) of each row, after the step was applied."""
        plan = self.plan()
        self.apply(plan)
        return [(row.request_id, row.start, len(row.tokens)) for row in plan.rows]

    def finish_all(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()


class ConstantLimit:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def observe(self, num_tokens: int, num_rows: int, context: int, seconds: float) -> None:
        pass

    def estimate(self, num_tokens: int, num_rows: int, context: int) -> float | None:
        return None

    def chunk_limit(self, num_rows: int, context: int, objective: float) -> int | None:
        return self.limit


class Proposer:
    def __init__(self, draft: Callable[[Request], Sequence[int]]) -> None:
        self._draft = draft

    def propose(self, requests: Sequence[Request]) -> list[Sequence[int]]:
        return [self._draft(each) for each in requests]


def right(count: int) -> Callable[[Request], list[int]]:
    """Drafts that the fake model accepts."""

    def draft(request: Request) -> list[int]:
        return sequential(request.tokens, count)

    return draft


# ---- one rule ----


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    loop = Loop(max_num_batched_tokens=5)
    loop.add(request("a", 11, 3))
    assert [loop.step() for _ in range(5)] == [
        [("a", 0, 5)],
        [("a", 5, 5)],
        [("a", 10, 1)],
        [("a", 11, 1)],
        [("a", 12, 1)],
    ]
    assert not loop.scheduler.has_unfinished


def test_rows_ask_for_logits_only_where_something_is_sampled() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add(request("a", 11, 3))
    first = loop.plan()
    assert first.rows[0] == PlanRow("a", (*range(7), 0), 0, (0, 1), 0, 0, False, first.rows[0].sampling)
    loop.apply(first)
    second = loop.plan()
    assert (second.rows[0].blocks, second.rows[0].num_logits, second.rows[0].samples) == ((0, 1, 2), 1, True)


def test_decodes_and_prefills_share_a_step_decodes_first() -> None:
    loop = Loop(max_num_batched_tokens=8)
    loop.add(request("a", 4, 9))
    loop.step()
    loop.add(request("b", 12, 9), request("c", 3, 9))
    assert loop.step() == [("a", 4, 1), ("b", 0, 7)]
    assert loop.step() == [("a", 5, 1), ("b", 7, 5), ("c", 0, 2)]
    assert loop.step() == [("a", 6, 1), ("b", 12, 1), ("c", 2, 1)]


def test_every_decode_is_served_each_step_when_the_budget_allows() -> None:
    loop = Loop(max_num_batched_tokens=4)
    loop.add(*(request(name, 1, 9) for name in "abc"), request("long", 40, 1))
    loop.step()
    for _ in range(7):
        assert [name for name, _, _ in loop.step()] == ["a", "b", "c", "long"]


def test_requests_join_only_into_budget_that_is_left() -> None:
    loop = Loop(max_num_batched_tokens=2)
    loop.add(*(request(name, 1, 3) for name in "abc"))
    assert [[name for name, _, _ in loop.step()] for _ in range(4)] == [["a", "b"], ["a", "b"], ["a", "b"], ["c"]]


def test_max_num_seqs_bounds_what_runs() -> None:
    loop = Loop(max_num_seqs=2)
    loop.add(*(request(name, 2, 2) for name in "abc"))
    assert [[row[0] for row in loop.step()] for _ in range(4)] == [["a", "b"], ["a", "b"], ["c"], ["c"]]


def test_max_prefill_chunk_caps_every_row() -> None:
    loop = Loop(max_prefill_chunk=3)
    loop.add(request("a", 7, 1), request("b", 2, 1))
    assert [loop.step() for _ in range(3)] == [[("a", 0, 3), ("b", 0, 2)], [("a", 3, 3)], [("a", 6, 1)]]


def test_without_chunked_prefill_prompts_stay_whole() -> None:
    loop = Loop(enable_chunked_prefill=False, max_num_batched_tokens=8, max_prefill_chunk=2)
    loop.add(request("a", 6, 3), request("b", 8, 1), request("c", 1, 1))
    steps = [loop.step() for _ in range(5)]
    assert steps == [[("a", 0, 6)], [("a", 6, 1)], [("a", 7, 1)], [("b", 0, 8)], [("c", 0, 1)]]


# ---- prefix cache ----


def test_a_cached_prefix_is_not_computed_again() -> None:
    loop = Loop(caching=True)
    loop.add(request("a", 10, 2))
    loop.finish_all()
    again = request("b", 10, 2)
    loop.add(again)
    plan = loop.plan()
    assert (plan.rows[0].start, plan.rows[0].blocks) == (8, (0, 1, 2))
    assert again.stats.cached_tokens == 8


def test_a_fully_cached_prompt_still_feeds_a_token() -> None:
    loop = Loop(caching=True)
    loop.add(request("a", 8, 1))
    loop.finish_all()
    loop.add(request("b", 8, 1))
    assert loop.step() == [("b", 4, 4)]


def test_prompt_logprobs_compute_the_whole_prompt_and_match_later() -> None:
    loop = Loop(caching=True, max_num_batched_tokens=6)
    loop.add(request("a", 8, 1))
    loop.finish_all()
    asked = request("b", 8, 2, prompt_logprobs=0)
    loop.add(asked)
    first = loop.plan()
    assert (first.rows[0].start, first.rows[0].num_logits, first.rows[0].samples) == (0, 6, False)
    loop.apply(first)
    second = loop.plan()
    assert (second.rows[0].start, second.rows[0].num_logits, second.rows[0].samples) == (6, 2, True)
    loop.apply(second)
    assert [entry.token_id for entry in asked.prompt_logprobs] == list(asked.prompt_token_ids[1:])
    assert loop.plan().rows[0].num_logits == 1


# ---- drafts ----


def test_accepted_drafts_come_with_one_more_token() -> None:
    loop = Loop(drafts=right(3))
    a = request("a", 5, 9)
    loop.add(a)
    loop.step()
    plan = loop.plan()
    assert (plan.rows[0].start, len(plan.rows[0].tokens), plan.rows[0].num_draft, plan.rows[0].num_logits) == (
        5,
        4,
        3,
        4,
    )
    updates = loop.apply(plan)
    assert updates[0].tokens == tuple(sequential(a.prompt_token_ids, 9)[1:5])
    assert (a.computed, len(a.tokens), a.stats.draft_tokens, a.stats.accepted_tokens) == (9, 10, 3, 3)


def test_rejected_drafts_are_written_over() -> None:
    loop = Loop(drafts=lambda r: [(next_token(r.tokens) + 1) % 7, 0])
    a = request("a", 5, 4)
    loop.add(a)
    assert [loop.step() for _ in range(4)] == [[("a", 0, 5)], [("a", 5, 3)], [("a", 6, 2)], [("a", 7, 1)]]
    assert a.output_token_ids == sequential(a.prompt_token_ids, 4)


def test_a_draft_never_reaches_beyond_max_tokens() -> None:
    loop = Loop(drafts=right(50))
    a = request("a", 5, 4)
    loop.add(a)
    assert [loop.step() for _ in range(2)] == [[("a", 0, 5)], [("a", 5, 3)]]
    assert a.output_token_ids == sequential(a.prompt_token_ids, 4)


def test_a_stop_inside_accepted_drafts_cuts_behind_it() -> None:
    answer = sequential([0, 1, 2, 3, 4], 9)
    stop = answer[2]
    length = answer.index(stop) + 1
    loop = Loop(drafts=right(6))
    a = request("a", 5, 9, stop_token_ids=(stop,), logprobs=0)
    loop.add(a)
    loop.finish_all()
    assert (a.output_token_ids, a.finish_reason, a.stop_token) == (answer[:length], "stop", stop)
    assert len(a.logprobs) == length


def test_every_decode_gets_its_token_before_any_draft_is_fed() -> None:
    loop = Loop(drafts=right(3), max_num_batched_tokens=6)
    loop.add(*(request(name, 2, 9, first=i) for i, name in enumerate("abc")))
    loop.step()
    assert loop.step() == [("b", 2, 4), ("c", 2, 1), ("a", 2, 1)]
    assert loop.step() == [("c", 3, 4), ("a", 3, 1), ("b", 6, 1)]
    assert loop.step() == [("a", 4, 4), ("b", 7, 1), ("c", 7, 1)]


def test_drafts_leave_budget_to_prompts_under_way() -> None:
    loop = Loop(drafts=right(9), max_num_batched_tokens=6, max_prefill_chunk=2)
    loop.add(request("a", 2, 20), request("b", 9, 1), request("c", 9, 1))
    assert loop.step() == [("a", 0, 2), ("b", 0, 2), ("c", 0, 2)]
    assert loop.step() == [("a", 2, 4), ("b", 2, 2)]


def test_a_draft_is_dropped_before_anything_is_preempted() -> None:
    loop = Loop(blocks=4, drafts=right(6))
    a, b = request("a", 7, 8), request("b", 7, 2, first=3)
    loop.add(a, b)
    loop.step()
    assert sorted(loop.step()) == [("a", 7, 1), ("b", 7, 1)]
    assert a.stats.preemptions == b.stats.preemptions == 0


# ---- preemption ----


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


# ---- refusals ----


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


# ---- ends from outside ----


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
    loop = Loop(cost_model=ConstantLimit(2), tpot_objective=1.0, max_prefill_chunk=2)
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


# ---- a runner that answers something else ----


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


# ---- n > 1 ----


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_children_wait_for_the_prompt_and_share_its_blocks(caching: bool, max_tokens: int) -> None:
    loop = Loop(caching=caching, max_num_batched_tokens=7)
    parent = request("p", 10, max_tokens, n=3)
    children = make_children(parent)
    loop.add(parent, *children)
    assert loop.step() == [("p", 0, 7)]
    assert loop.step() == [("p", 7, 3)]
    plan = loop.plan()
    rows = {row.request_id: row for row in plan.rows}
    for child in children:
        assert (rows[child.id].start, rows[child.id].blocks[:2]) == (8, (0, 1))
    assert loop.kv.refs(0) == (3 if max_tokens > 1 else 2)
    loop.apply(plan)
    loop.finish_all()
    for each in (parent, *children):
        assert each.output_token_ids == sequential(each.prompt_token_ids, max_tokens, each.seed)
    assert loop.kv.usage().shared_tokens == 16


def test_waiting_children_do_not_block_others() -> None:
    loop = Loop(max_num_batched_tokens=6)
    parent = request("p", 10, 2, n=2)
    loop.add(parent, *make_children(parent), request("x", 2))
    loop.step()
    assert loop.step() == [("p", 6, 4), ("x", 0, 2)]


def test_when_the_parent_goes_its_first_child_takes_its_place() -> None:
    loop = Loop(max_num_batched_tokens=6)
    parent = request("p", 10, 2, n=3)
    loop.add(parent, *make_children(parent))
    loop.step()
    loop.scheduler.abort("p", 1.0)
    assert loop.step() == [("p/1", 0, 6)]
    assert loop.step() == [("p/1", 6, 4)]
    assert dict.fromkeys(loop.step()) == dict.fromkeys([("p/1", 10, 1), ("p/2", 8, 2)])


def test_a_child_whose_parent_is_unknown_or_gone_runs_by_itself() -> None:
    loop = Loop()
    parent = request("p", 10, 2, n=2)
    loop.add(*make_children(parent))
    assert loop.step() == [("p/1", 0, 10)]


def test_a_child_that_arrives_late_shares_at_once() -> None:
    loop = Loop()
    parent = request("p", 10, 5, n=2)
    loop.add(parent)
    loop.step()
    loop.add(*make_children(parent))
    assert loop.step() == [("p", 10, 1), ("p/1", 8, 2)]


def test_held_blocks_are_given_up_before_anything_is_preempted() -> None:
    loop = Loop(blocks=4, max_num_seqs=1)
    parent = request("p", 9, 1, n=2)
    child = make_children(parent)[0]
    loop.add(parent, request("x", 12, 2), child)
    loop.step()
    assert (child.blocks, child.status) == ([0, 1], RequestStatus.WAITING)
    assert loop.step() == [("x", 0, 12)]
    assert (child.blocks, child.computed) == ([], 0)
    loop.finish_all()
    assert child.output_token_ids == sequential(child.prompt_token_ids, 1, child.seed)


# ---- objectives and fairness ----


def test_a_tpot_objective_shortens_chunks_beside_decodes_only() -> None:
    model = LinearCostModel(min_observations=1, min_chunk=2)
    for tokens in (1, 50, 100, 200, 300) * 4:
        model.observe(tokens, 1, tokens, tokens * 1e-3)
    loop = Loop(cost_model=model, tpot_objective=0.020, max_num_batched_tokens=100)
    loop.add(request("a", 60, 9))
    assert loop.step() == [("a", 0, 60)]
    loop.add(request("b", 60, 9))
    plan = loop.plan()
    chunk = {row.request_id: len(row.tokens) for row in plan.rows}
    assert chunk["a"] == 1
    assert 10 <= chunk["b"] <= 19
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


# ---- equivalences ----


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
