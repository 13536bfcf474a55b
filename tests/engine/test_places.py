"""Requests whose grammar is being compiled count towards the bounds of the queue."""

from __future__ import annotations

import pytest
from core_fakes import Bench

from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.places import HeldPlaces
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.queue import QueueFullError
from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(name: str, num_prompt: int = 3, n: int = 1) -> GenerationRequest:
    return GenerationRequest(name, (1,) * num_prompt, SamplingParams(max_tokens=4, seed=0, n=n))


def test_places_are_counted_until_they_are_released() -> None:
    places, seen = HeldPlaces(), []
    places.hold("a", 2, 10, seen.append)
    places.hold("b", 1, 5, seen.append)
    assert seen == [(0, 0), (2, 10)]
    assert (places.others("a"), places.others("b"), places.others("c")) == ((1, 5), (2, 10), (3, 15))
    with pytest.raises(InvalidParamsError, match="request a: a request with this id"):
        places.hold("a", 1, 1, seen.append)
    places.release("a")
    places.release("a")
    assert (places.num_requests, places.num_tokens) == (1, 5)


def test_who_finds_no_room_holds_no_place() -> None:
    places = HeldPlaces()

    def full(others: tuple[int, int]) -> None:
        raise QueueFullError(9)

    with pytest.raises(QueueFullError):
        places.hold("a", 1, 1, full)
    assert places.num_requests == 0
    places.release("a")


def test_a_place_counts_as_waiting_for_others_and_not_for_its_owner() -> None:
    bench = Bench(max_queued=2)
    bench.core.hold_place(request("a"))
    bench.core.hold_place(request("b", n=1))
    assert (bench.core.stats().num_waiting, bench.core.stats().num_queued_tokens) == (2, 6)
    assert not bench.core.has_work
    for refuse in (bench.core.hold_place, bench.core.add):
        with pytest.raises(QueueFullError, match="2 requests are waiting"):
            refuse(request("c"))
    bench.core.release_place("b")
    bench.add("a")
    assert bench.core.stats().num_waiting == 1
    bench.add("c")
    with pytest.raises(QueueFullError):
        bench.core.hold_place(request("d"))
    bench.run()


def test_prompt_tokens_count_too() -> None:
    bench = Bench(max_queued_tokens=10)
    bench.core.hold_place(request("a", 20))  # the first may be larger
    with pytest.raises(QueueFullError, match="20 prompt tokens"):
        bench.core.hold_place(request("b", 1))
    bench.add("a", (1,) * 20)
    bench.run()


def test_a_request_that_is_refused_leaves_its_place() -> None:
    bench = Bench(max_queued=2)
    bench.core.hold_place(request("a"))
    with pytest.raises(InvalidParamsError):
        bench.core.add(GenerationRequest("a", (), SamplingParams()))
    assert bench.core.stats().num_waiting == 0
    too_many = request("b", n=3)
    bench.core.hold_place(too_many)
    with pytest.raises(RequestTooLargeError, match="n = 3"):
        bench.core.add(too_many)
    assert bench.core.stats().num_waiting == 0


def test_what_others_hold_does_not_break_a_request_that_is_being_added() -> None:
    """A place may be taken by another thread at any moment."""
    bench = Bench(max_queued=2)
    check = bench.scheduler.check

    def check_and_hold(*arguments: object) -> None:
        check(*arguments)  # type: ignore[arg-type]
        bench.scheduler.check = check  # type: ignore[method-assign]
        bench.scheduler.require_room = lambda *rest: bench.core.hold_place(request("late", n=2))  # type: ignore[method-assign]

    bench.scheduler.check = check_and_hold  # type: ignore[method-assign]
    bench.add("a")
    bench.core.release_place("late")
    bench.run()
    assert bench.core.stats().num_finished == 1
