from __future__ import annotations

import pytest

from slipstream.engine.request import Request, make_request
from slipstream.engine.running import RunningSet
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(name: str, priority: int) -> Request:
    return make_request(name, [1], SamplingParams(), max_model_len=9, arrival=0.0, priority=priority)


def test_keeps_the_order_of_arrival_and_the_order_of_rank() -> None:
    sorts: list[str] = []

    def rank(request: Request) -> tuple[float, ...]:
        sorts.append(request.id)
        return (request.priority,)

    a, b, c = request("a", 3), request("b", 1), request("c", 2)
    running = RunningSet(rank)
    for each in (a, b, c):
        running.add(each)
    assert list(running) == [a, b, c]
    ranked = running.by_rank()
    assert ranked == [b, c, a]
    assert running.by_rank() is ranked
    assert len(sorts) == 3
    running.discard(c)
    running.discard(c)
    assert (list(running), len(running), c in running, ranked) == ([a, b], 2, False, [b, c, a])
    assert running.by_rank() == [b, a]
    again = running.by_rank()
    running.discard(c)
    assert running.by_rank() is again
