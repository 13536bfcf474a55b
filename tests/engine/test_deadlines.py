"""A deadline that cannot be met ends a request before any work is done for it."""

from __future__ import annotations

import pytest
from core_fakes import Bench
from scheduling_fakes import sequential
from scheduling_loop import Loop, request

from slipstream.engine.cost_model import LinearCostModel, work_of
from slipstream.engine.scheduler import RequestUpdate
from slipstream.errors import DeadlineError, RequestError

pytestmark = pytest.mark.fast


def millisecond_per_token() -> LinearCostModel:
    model = LinearCostModel(min_observations=1)
    for tokens in (1, 50, 100, 200, 300) * 4:
        model.observe(work_of([(0, tokens)]), tokens * 1e-3)
    return model


def slow_loop(**settings: object) -> Loop:
    return Loop(cost_model=millisecond_per_token(), blocks=400, **({"max_num_seqs": 1} | settings))


def test_what_could_never_be_in_time_is_refused_at_the_door() -> None:
    loop = slow_loop()
    with pytest.raises(
        DeadlineError, match=r"request a: The deadline cannot be met: at least 0\.[45].* s are needed"
    ) as e:
        loop.scheduler.require_room(request("a", 400, deadline=0.2))
    assert e.value.retry_after is None  # it would not be in time alone either
    assert isinstance(e.value, RequestError)
    assert loop.scheduler.stats().num_shed == 1
    loop.scheduler.require_room(request("a", 400, deadline=0.5))
    loop.scheduler.require_room(request("a", 400))


def test_what_waits_before_it_counts_and_says_when_to_come_back() -> None:
    loop = slow_loop()
    loop.add(request("before", 500))
    with pytest.raises(DeadlineError) as caught:
        loop.scheduler.require_room(request("a", 100, deadline=0.2))
    assert caught.value.retry_after == pytest.approx(0.4, abs=0.03)


def test_tokens_that_must_be_made_count() -> None:
    loop = slow_loop()
    loop.scheduler.require_room(request("may end early", 1, 500, deadline=0.1))
    for params in ({"ignore_eos": True}, {"min_tokens": 400}):
        with pytest.raises(DeadlineError):
            loop.scheduler.require_room(request("a", 1, 500, deadline=0.1, **params))


def test_nothing_is_refused_while_too_little_is_known() -> None:
    loop = Loop()
    loop.scheduler.require_room(request("a", 200, deadline=1e-9))


def test_a_waiting_request_is_given_up_when_it_has_become_hopeless() -> None:
    loop = slow_loop()
    runs, waits, patient = request("runs", 4, 30), request("waits", 300, deadline=3.25), request("patient", 4)
    loop.add(runs, waits, patient)
    for _ in range(3):
        loop.step()
    assert not waits.finished  # 0.3 s are needed, and at 3.0 there are 0.25 left, which an estimate may miss
    update = loop.scheduler
    plan = loop.plan()  # at 4.0 it has expired
    assert waits.finish_reason == "deadline"
    assert waits.error is None
    assert update.stats().num_shed == 0
    loop.apply(plan)

    loop = slow_loop()
    runs, waits, patient = request("runs", 4, 30), request("waits", 300, deadline=2.1), request("patient", 4)
    loop.add(runs, waits, patient)
    loop.step()
    assert not waits.finished
    plan = loop.plan()  # at 2.0
    assert (waits.finish_reason, waits.blocks) == ("deadline", [])
    assert waits.error is not None
    assert waits.error.startswith("the deadline cannot be met: at least 0.3")
    assert RequestUpdate(waits, finish_reason="deadline") in loop.apply(plan)
    assert loop.scheduler.stats().num_shed == 1
    loop.finish_all()
    assert patient.finish_reason == "length"


def test_who_stands_behind_one_that_is_given_up_profits() -> None:
    loop = slow_loop()
    loop.add(request("runs", 4, 30))
    loop.step()
    first, second = request("first", 900, deadline=2.5), request("second", 200, deadline=2.5)
    loop.add(first, second)
    loop.plan()
    assert (first.finish_reason, second.finish_reason) == ("deadline", None)


def test_what_runs_is_left_alone_until_its_deadline() -> None:
    loop = slow_loop(max_num_batched_tokens=16)
    runs = request("runs", 900, deadline=3.0)
    loop.add(runs)
    for _ in range(2):
        loop.step()  # the second at 2.0, with more to compute than fits into the time that is left
        assert not runs.finished
    assert loop.scheduler.plan(3.0) is None
    assert (runs.finish_reason, runs.error, loop.scheduler.stats().num_shed) == ("deadline", None, 0)


def test_the_reason_reaches_the_caller() -> None:
    bench = Bench(max_num_seqs=1)
    bench.scheduler._cost_model = model = millisecond_per_token()
    bench.scheduler._deadlines._cost_model = model
    bench.add("a", max_tokens=30)
    bench.step()
    late = bench.add("late", (1,) * 100, timeout=0.2)
    bench.clock.now += 0.15
    bench.take(bench.core.step())
    [output] = late.outputs
    assert output.finish_reason == "deadline"
    assert output.error is not None
    assert "cannot be met" in output.error
    assert bench.core.stats().num_shed == 1
    bench.run()
    assert bench.outputs["a"].outputs[0].token_ids == sequential((1, 2, 3), 30)
