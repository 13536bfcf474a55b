import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder, QueueFullError, QueuePolicy, WaitingQueue
from slipstream.engine.request import Request, RequestStatus, make_request
from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(order: int, priority: int = 0, arrival: float | None = None, preempted: bool = False) -> Request:
    arrival = float(order) if arrival is None else arrival
    made = make_request(str(order), [1], SamplingParams(), max_model_len=9, arrival=arrival, priority=priority)
    made.order = order
    if preempted:
        made.status = RequestStatus.PREEMPTED
    return made


def filled(policy: QueuePolicy, requests: list[Request]) -> list[str]:
    queue = WaitingQueue(policy)
    for each in requests:
        queue.push(each)
    return [each.id for each in queue]


def test_first_come_first_served_whatever_the_priority() -> None:
    assert filled(FirstComeFirstServed(), [request(1, 5), request(0, 9), request(2, 0)]) == ["0", "1", "2"]


def test_preempted_requests_come_first_in_their_order() -> None:
    waiting = [request(0), request(1), request(5, preempted=True), request(4, preempted=True)]
    assert filled(FirstComeFirstServed(), waiting) == ["4", "5", "0", "1"]


def test_priority_then_arrival() -> None:
    waiting = [request(0, 1), request(1, 0), request(2, -1), request(3, 0, arrival=0.5)]
    assert filled(PriorityOrder(None), waiting) == ["2", "3", "1", "0"]


def test_a_preempted_request_does_not_leave_its_class() -> None:
    waiting = [request(0, 1, 0.0), request(1, 1, 0.0, preempted=True), request(2, 0, 9.0)]
    assert filled(PriorityOrder(None), waiting) == ["2", "1", "0"]


def test_with_ageing_a_level_of_priority_is_worth_a_time() -> None:
    old = request(0, priority=2, arrival=0.0)
    before, after = request(1, 0, arrival=19.9), request(2, 0, arrival=20.1)
    assert filled(PriorityOrder(10.0), [after, before, old]) == ["1", "0", "2"]
    assert filled(PriorityOrder(None), [after, before, old]) == ["1", "2", "0"]


def test_bound_counts_waiting_requests_and_lets_preempted_ones_back() -> None:
    queue = WaitingQueue(FirstComeFirstServed(), max_queued=2)
    queue.require_room(request(0), also=1)
    with pytest.raises(QueueFullError):
        queue.require_room(request(0), also=2)
    queue.push(request(0))
    queue.push(request(1))
    with pytest.raises(RequestError, match="request 2: 2 requests are waiting already") as caught:
        queue.require_room(request(2))
    assert isinstance(caught.value, QueueFullError)
    assert caught.value.num_waiting == 2
    queue.push(request(3, preempted=True))
    assert len(queue) == 3


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5), st.booleans()), max_size=12), st.data())
@settings(deadline=None, max_examples=50)
def test_order_and_removal_equal_sorting(drawn: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    requests = [request(i, p, float(a), preempted) for i, (p, a, preempted) in enumerate(drawn)]
    queue = WaitingQueue(PriorityOrder(2.0))
    for each in data.draw(st.permutations(requests)):
        queue.push(each)
    gone = set(data.draw(st.lists(st.sampled_from(requests)))) if requests else set()
    for each in gone:
        each.status = RequestStatus.RUNNING  # removal must not depend on what changed since
        queue.remove(each)
    left = [(2.0 * p + a, not preempted, i) for i, (p, a, preempted) in enumerate(drawn) if requests[i] not in gone]
    assert [each.order for each in queue] == [i for _, _, i in sorted(left)]
    assert [each in queue for each in requests] == [each not in gone for each in requests]
