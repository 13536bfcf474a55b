"""Exact plans, block ids and updates of single decisions; random workloads are in test_scheduler_random.py."""

from __future__ import annotations

import pytest
from scheduling_fakes import next_token, sequential
from scheduling_loop import Loop, request, right

from slipstream.engine.grants import Grants
from slipstream.engine.plan import PlanRow

pytestmark = pytest.mark.fast


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


def test_a_draft_takes_no_block_that_another_request_needs() -> None:
    """The last block is for the second request's own token, though the first one's draft would fill it."""
    loop = Loop(blocks=5, drafts=right(3))
    a, b = request("a", 7, 8), request("b", 8, 2, first=3)
    loop.add(a, b)
    loop.step()
    assert loop.step() == [("a", 7, 1), ("b", 8, 1)]
    assert a.stats.preemptions == b.stats.preemptions == 0
    loop.finish_all()
    assert a.output_token_ids == sequential(a.prompt_token_ids, 8)
    assert a.stats.accepted_tokens > 0


def test_prompt_logits_of_all_rows_together_are_bounded_per_step() -> None:
    loop = Loop(blocks=1000, max_num_batched_tokens=1000)
    loop.add(
        request("a", 300, 1, prompt_logprobs=0),
        request("plain", 310, 1),
        request("b", 300, 1, prompt_logprobs=0),
        request("c", 20, 1, prompt_logprobs=0),
        request("last", 5, 1),
    )
    assert loop.step() == [("a", 0, 256), ("plain", 0, 310), ("last", 0, 5)]
    assert loop.step() == [("a", 256, 44), ("b", 0, 212)]
    assert loop.step() == [("b", 212, 88), ("c", 0, 20)]
    assert not loop.scheduler.has_unfinished


def test_prompt_logits_are_bounded_without_chunked_prefill_too() -> None:
    loop = Loop(blocks=1000, max_num_batched_tokens=1000, enable_chunked_prefill=False)
    loop.add(request("a", 300, 1, prompt_logprobs=0), request("plain", 310, 1))
    assert loop.step() == [("a", 0, 256), ("plain", 0, 310)]
    assert loop.step() == [("a", 256, 44)]


def test_a_preempted_prompt_gives_its_share_of_prompt_logits_back() -> None:
    grants = Grants(1000)
    first, second = request("a", 300, 1, prompt_logprobs=0), request("b", 300, 1, prompt_logprobs=0)
    grants.give(first, grants.limit(first, 300))
    assert (grants.left, grants.limit(second, 300), grants.limit(request("plain", 300), 300)) == (744, 0, 300)
    grants.withdraw(first)
    assert (grants.left, grants.limit(second, 300)) == (1000, 256)
