"""n > 1: the prompt is computed once and its blocks are shared."""

from __future__ import annotations

import pytest
from scheduling_fakes import sequential
from scheduling_loop import Loop, request

from slipstream.engine.request import RequestStatus, make_children

pytestmark = pytest.mark.fast


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
