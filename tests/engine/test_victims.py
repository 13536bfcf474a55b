"""Who gives way when blocks run out: the queue's order backwards, tenants included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_fakes import sequential
from scheduling_loop import Loop, request

from slipstream.engine.fairness import TenantShares
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder, QueuePolicy
from slipstream.engine.request import Request
from slipstream.engine.running import RunningSet
from slipstream.engine.victims import choose_victim, rank

pytestmark = pytest.mark.fast


def of(tenant: str | None, name: str, num_prompt: int = 7, max_tokens: int = 6, **fields: object) -> Request:
    made = request(name, num_prompt, max_tokens, **fields)  # type: ignore[arg-type]
    made.tenant = tenant
    return made


def victim(*requests: Request, policy: QueuePolicy | None = None, **served: float) -> str:
    policy = policy or FirstComeFirstServed()
    running, shares = RunningSet(lambda each: rank(policy, each)), TenantShares()
    for number, each in enumerate(requests):
        each.order = number
        shares.enter(each.tenant)
        running.add(each)
    for tenant, weight in served.items():
        shares.charge_prompt(tenant, int(weight))
    return choose_victim(running, policy, shares).id


def test_with_one_tenant_it_is_the_last_by_rank() -> None:
    assert victim(of("a", "a0"), of("a", "a1"), of("a", "a2")) == "a2"
    important, less = of(None, "n0", priority=1), of(None, "n1", priority=0)
    assert victim(important, less, policy=PriorityOrder(None)) == "n0"


def test_it_is_the_last_one_of_the_tenant_that_was_served_most() -> None:
    requests = [of("a", "a0"), of("a", "a1"), of("b", "b0"), of(None, "n0")]
    assert victim(*requests, a=10, b=9) == "a1"
    assert victim(*requests, a=9, b=10) == "b0"


def test_among_tenants_that_were_served_alike_the_last_by_rank() -> None:
    assert victim(of("a", "a0"), of("b", "b0"), of("a", "a1")) == "a1"
    assert victim(of("a", "a0"), of("b", "b0"), of("c", "c0"), a=5, b=5) == "b0"


def test_priorities_come_before_shares() -> None:
    greedy, modest = of("a", "a0", priority=0), of("b", "b0", priority=1)
    assert victim(greedy, modest, policy=PriorityOrder(None), a=100) == "b0"
    low = [of("a", "a-low", priority=1), of("b", "b-low", priority=1), of("b", "b0", priority=0)]
    assert victim(*low, policy=PriorityOrder(None), a=100) == "a-low"
    assert victim(*low, policy=PriorityOrder(None), b=100) == "b-low"


def test_protected_requests_come_last_and_the_oldest_of_them_never() -> None:
    requests = [of("a", "a0"), of("a", "a1"), of("b", "b0")]
    requests[0].protected = requests[1].protected = True
    assert victim(*requests, a=100) == "b0"
    requests[2].protected = True
    assert victim(*requests, a=100) == "b0"
    assert victim(requests[0], requests[1], a=100) == "a1"


def test_the_older_request_of_a_greedy_tenant_gives_way() -> None:
    loop = Loop(blocks=4)
    old, new = of("greedy", "old"), of("modest", "new", first=3)
    loop.add(old, new)
    loop.scheduler.queue.shares.charge_output("greedy", 50)
    loop.step()
    loop.step()
    assert loop.step() == [("new", 8, 1)]
    assert (old.stats.preemptions, new.stats.preemptions) == (1, 0)
    loop.finish_all()
    for each in (old, new):
        assert each.output_token_ids == sequential(each.prompt_token_ids, 6)


drawn_requests = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 2), st.integers(1, 12), st.integers(1, 20)),
    min_size=2,
    max_size=9,
)


@given(drawn_requests, st.integers(8, 14), st.booleans())
@settings(deadline=None, max_examples=40)
def test_everybody_ends_with_the_same_tokens(
    drawn: list[tuple[str | None, int, int, int]], blocks: int, ageing: bool
) -> None:
    loop = Loop(blocks=blocks, policy=PriorityOrder(3.0 if ageing else None), max_preemptions=2)
    requests = [
        of(tenant, str(i), prompt, output, priority=priority, first=i)
        for i, (tenant, priority, prompt, output) in enumerate(drawn)
    ]
    loop.add(*requests)
    loop.finish_all()
    for each in requests:
        assert each.output_token_ids == sequential(each.prompt_token_ids, each.max_tokens)
