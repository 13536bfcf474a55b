"""Tenants that wait get equal shares of the tokens, whatever each of them asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_loop import Loop, request

from slipstream.engine.fairness import TenantShares
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder, WaitingQueue
from slipstream.engine.request import Request, RequestStatus

pytestmark = pytest.mark.fast


def of(tenant: str | None, name: str, num_prompt: int = 4, max_tokens: int = 4, **fields: object) -> Request:
    made = request(name, num_prompt, max_tokens, **fields)  # type: ignore[arg-type]
    made.tenant = tenant
    return made


def order(queue: WaitingQueue) -> list[str]:
    return [each.id for each in queue]


def filled(*requests: Request, policy: object = None) -> WaitingQueue:
    queue = WaitingQueue(policy or FirstComeFirstServed())  # type: ignore[arg-type]
    for number, each in enumerate(requests):
        each.order = number
        queue.shares.enter(each.tenant)
        queue.push(each)
    return queue


def test_nothing_is_counted_for_a_single_tenant() -> None:
    shares = TenantShares()
    shares.enter("a")
    shares.charge_prompt("a", 100)
    assert (shares.several, shares.served("a")) == (False, 0.0)


def test_output_counts_twice_and_a_newcomer_starts_at_the_least() -> None:
    shares = TenantShares()
    for tenant in ("a", "b"):
        shares.enter(tenant)
    shares.charge_prompt("a", 10)
    shares.charge_output("a", 5)
    shares.charge_prompt("b", 7)
    shares.enter("c")
    assert [shares.served(tenant) for tenant in "abc"] == [20.0, 7.0, 7.0]


def test_who_leaves_keeps_what_it_had_too_much_and_saves_up_nothing() -> None:
    shares = TenantShares()
    for tenant in ("greedy", "idle", "other"):
        shares.enter(tenant)
    shares.charge_prompt("greedy", 50)
    shares.leave("greedy")
    shares.leave("idle")
    shares.charge_output("other", 9)  # alone: nobody to compare with
    shares.enter("greedy")
    shares.charge_output("other", 9)
    shares.enter("idle")
    assert [shares.served(tenant) for tenant in ("greedy", "other", "idle")] == [50.0, 18.0, 18.0]


def test_nothing_is_remembered_of_an_empty_engine() -> None:
    shares = TenantShares()
    for tenant in ("a", "b"):
        shares.enter(tenant)
    shares.charge_prompt("a", 50)
    for tenant in ("a", "b"):
        shares.leave(tenant)
    shares.enter("a")
    assert shares.served("a") == 0.0


def test_turns_are_by_tokens_not_by_requests() -> None:
    queue = filled(
        of("a", "a0", 9), of("a", "a1", 9), of("b", "b0", 3), of("b", "b1", 3), of("b", "b2", 3), of("b", "b3")
    )
    assert order(queue) == ["a0", "b0", "b1", "b2", "a1", "b3"]


def test_iterating_charges_nobody() -> None:
    queue = filled(of("a", "a0"), of("b", "b0"), of("a", "a1"))
    assert order(queue) == order(queue) == ["a0", "b0", "a1"]


def test_who_was_served_more_waits() -> None:
    queue = filled(of("a", "a0"), of("b", "b0"), of("a", "a1"), of(None, "n0"))
    queue.shares.charge_output("a", 100)
    assert order(queue) == ["b0", "n0", "a0", "a1"]


def test_a_preempted_request_goes_first_whoever_it_belongs_to() -> None:
    preempted = of("a", "p")
    preempted.status = RequestStatus.PREEMPTED
    queue = filled(of("b", "b0"), preempted, of("a", "a0"))
    queue.shares.charge_output("a", 100)
    assert order(queue) == ["p", "b0", "a0"]


def test_shares_are_within_a_level_of_priority() -> None:
    queue = filled(
        of("a", "a-low", priority=1),
        of("b", "b-low", priority=1),
        of("a", "a0"),
        of("a", "a1"),
        of("b", "b0"),
        policy=PriorityOrder(None),
    )
    queue.shares.charge_output("a", 100)
    assert order(queue) == ["b0", "a0", "a1", "b-low", "a-low"]


tenants = st.sampled_from(["a", "b", "c", None])


@given(st.lists(st.tuples(tenants, st.integers(0, 2), st.integers(1, 9)), max_size=14), st.data())
@settings(deadline=None, max_examples=60)
def test_every_waiting_request_is_given_out_once_and_tokens_add_up(
    drawn: list[tuple[str | None, int, int]], data: st.DataObject
) -> None:
    requests = [of(t, f"r{i}", n, priority=p, arrival=float(i)) for i, (t, p, n) in enumerate(drawn)]
    queue = filled(*requests, policy=PriorityOrder(2.0))
    gone = set(data.draw(st.lists(st.sampled_from(requests)))) if requests else set()
    for each in gone:
        queue.remove(each)
    left = [each for each in requests if each not in gone]
    given_out = list(queue)
    assert sorted(each.id for each in given_out) == sorted(each.id for each in left)
    assert (len(queue), queue.num_tokens) == (len(left), sum(each.num_prompt_tokens for each in left))
    for tenant in {each.tenant for each in left}:  # nobody overtakes his own
        for priority in range(3):
            mine = [each.order for each in given_out if (each.tenant, each.priority) == (tenant, priority)]
            assert mine == sorted(mine)


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    loop = Loop(max_num_seqs=2)
    flood = [of("flood", f"f{i}", 4, 6) for i in range(30)]
    loop.add(*flood)
    for _ in range(4):
        loop.step()
    modest = [of("modest", f"m{i}", 4, 6) for i in range(3)]
    loop.add(*modest)
    while not all(each.finished for each in modest):
        loop.step()
    assert sum(each.finished for each in flood) <= 2 + 2 + 3


def test_shares_of_a_long_contest_are_equal() -> None:
    loop = Loop(max_num_seqs=3, blocks=200)
    long = [of("long", f"l{i}", 20, 20) for i in range(40)]
    short = [of("short", f"s{i}", 3, 3) for i in range(300)]
    loop.add(*long, *short)
    for _ in range(300):
        loop.step()

    def had(requests: list[Request]) -> int:
        started = [each for each in requests if each.stats.first_scheduled is not None]
        return sum(each.num_prompt_tokens + 2 * each.num_output_tokens for each in started)

    assert len(long) > sum(each.finished for each in long) > 5
    assert 0.9 < had(long) / had(short) < 1.1
