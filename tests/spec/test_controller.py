from __future__ import annotations

from itertools import pairwise

import pytest

from slipstream.errors import ConfigError
from slipstream.spec.controller import DOUBT_INTERVAL, LONGEST_DOUBT_INTERVAL, Controller, ControlOptions
from slipstream.spec.proposer import Draft
from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast
DRAFT = Draft((1, 2, 3, 4, 5, 6, 7), 3)


def times(per_token: float, rows: int = 1) -> StepTimes:
    """A step of `rows` tokens takes 1 second, every further token `per_token`."""
    return StepTimes({(rows, rows + n, 0): 1.0 + per_token * n for n in range(9)})


def run(controller: Controller, accepted: int, steps: int) -> list[int]:
    """Lengths offered when of every verified draft at most `accepted` tokens are right."""
    lengths = []
    for _ in range(steps):
        [length] = controller.offer([("a", DRAFT)])
        lengths.append(length)
        controller.observe("a", length, min(accepted, length))
    return lengths


def test_fixed_takes_what_there_is() -> None:
    controller = Controller(ControlOptions("fixed", num_tokens=4), None)
    assert controller.offer([("a", DRAFT), ("b", Draft((9,), 1)), ("c", Draft())]) == [4, 1, 0]
    assert run(controller, 0, 200) == [4] * 200


def test_threshold_switches_off_probes_and_switches_on_again() -> None:
    controller = Controller(ControlOptions("threshold", num_tokens=4, probe_interval=10), None)
    lengths = run(controller, 0, 108)
    assert lengths == [4] * 8 + ([0] * 9 + [1]) * 10
    # Of 8 probes that are right after 10 that were wrong the rate is not above 55 % yet; after 13 it is.
    lengths = run(controller, 4, 200)
    assert lengths[:130] == ([0] * 9 + [1]) * 13
    assert lengths[130:] == [4] * 70


def test_threshold_takes_the_last_fifty_proposals() -> None:
    controller = Controller(ControlOptions("threshold", num_tokens=1, probe_interval=1000), None)
    assert run(controller, 1, 200) == [1] * 200
    assert run(controller, 0, 40) == [1] * 31 + [0] * 9  # 31 wrong of the last 50: 38 %


@pytest.mark.parametrize(("right", "on"), [(3, False), (4, True)])
def test_threshold_is_off_below_forty_percent(right: int, on: bool) -> None:
    """Of the eighth proposal `right` tokens are, and four of each before: 39 or 40 % of 80."""
    controller = Controller(ControlOptions("threshold"), None)
    for accepted in (4, 4, 4, 4, 4, 4, 4, right):
        assert controller.offer([("a", DRAFT)]) == [5]
        controller.observe("a", 10, accepted)
    assert controller.offer([("a", DRAFT)]) == [5 if on else 0]


@pytest.mark.parametrize(("right", "on"), [(11, False), (12, True)])
def test_threshold_is_on_above_fifty_five_percent(right: int, on: bool) -> None:
    controller = Controller(ControlOptions("threshold", num_tokens=10), None)
    for _ in range(8):
        controller.observe("a", 1, 0)
    assert controller.offer([("a", DRAFT)]) == [0]
    for index in range(20):
        controller.observe("a", 1, int(index >= 20 - right))  # the wrong ones first, so that it is on at the end or not
    assert controller.offer([("a", DRAFT)]) == [7 if on else 0]


def test_threshold_switches_requests_apart() -> None:
    controller = Controller(ControlOptions("threshold", num_tokens=4), None)
    for _ in range(8):
        controller.observe("bad", 4, 0)
        controller.observe("good", 4, 4)
    assert controller.offer([("bad", DRAFT), ("good", DRAFT), ("new", DRAFT)], others=3) == [0, 4, 4]


def test_hysteresis_between_the_thresholds() -> None:
    controller = Controller(ControlOptions("threshold", num_tokens=2), None)
    assert run(controller, 1, 100) == [2] * 100  # half accepted: above 40 %, so it stays on
    off = Controller(ControlOptions("threshold", num_tokens=2, probe_interval=1), None)
    run(off, 0, 8)
    for index in range(100):
        off.observe("a", 1, index % 2)  # half accepted: below 55 %, so it stays off
    assert off.offer([("a", DRAFT)]) == [1]


def test_cost_lengthens_what_pays_and_drops_what_does_not() -> None:
    good = Controller(ControlOptions(num_tokens=5), times(0.1))
    assert run(good, 5, 100)[-1] == 5
    bad = Controller(ControlOptions(num_tokens=5), times(0.1))
    assert sum(run(bad, 0, 60)[-20:]) <= 3  # a probe now and then
    dear = Controller(ControlOptions(num_tokens=5), times(1.5))
    assert run(dear, 5, 60) == [0] * 60


def test_cost_probes_rarely() -> None:
    controller = Controller(ControlOptions(probe_interval=20), times(0.3))
    run(controller, 0, 200)
    lengths = run(controller, 0, 200)
    assert lengths.count(1) == 10
    assert lengths.count(0) == 190


def test_cost_comes_back_when_drafts_become_right() -> None:
    controller = Controller(ControlOptions(probe_interval=4), times(0.2))
    run(controller, 0, 100)
    assert run(controller, 5, 400)[-1] == 5


def test_a_full_batch_leaves_no_room_for_doubtful_drafts() -> None:
    alone = Controller(ControlOptions(), times(0.2))
    assert alone.offer([("a", DRAFT)]) != [0]
    crowded = Controller(ControlOptions(), StepTimes({(16, 16 + n, 0): 1.0 + n for n in range(9)}))
    assert crowded.offer([("a", DRAFT)], others=15) == [0]


def test_requests_learn_from_one_another_but_apart() -> None:
    controller = Controller(ControlOptions(num_tokens=3), times(0.3))
    for _ in range(100):
        [length] = controller.offer([("good", DRAFT)])
        controller.observe("good", length, length)
    assert controller.offer([("new", DRAFT)]) == [3]
    for _ in range(60):
        controller.observe("bad", 1, 0)
    assert controller.acceptance("bad") == 0.0
    assert controller.acceptance("good") == 1.0
    assert controller.offer([("good", DRAFT)]) == [3]


def test_a_closed_request_leaves_nothing_behind() -> None:
    controller = Controller(ControlOptions("threshold"), None)
    for _ in range(8):
        controller.observe("a", 4, 0)
    assert controller.offer([("a", DRAFT)]) == [0]
    controller.forget("a")
    assert controller.acceptance("a") is None
    assert controller.offer([("a", DRAFT)]) == [5]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "best"},
        {"num_tokens": 0},
        {"num_tokens": 65},
        {"off_below": 0.6},
        {"on_above": 1.5},
        {"margin": -0.1},
        {"probe_interval": 0},
    ],
)
def test_senseless_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ControlOptions(**options)  # type: ignore[arg-type]


def test_cost_needs_times() -> None:
    with pytest.raises(ConfigError, match="step times"):
        Controller(ControlOptions("cost"), None)


def test_what_is_certain_is_verified_where_a_guess_would_not_be() -> None:
    times = StepTimes({(4, 4 + extra, 0): 0.01 + 0.002 * extra for extra in range(9)})
    controller = Controller(ControlOptions(), times, {-1: 0.95})
    assert controller.offer([("guess", Draft((1, 2), 1)), ("certain", Draft((3, 4), -1))], others=2) == [0, 2]


def test_what_is_hardly_known_is_probed_more_often_and_by_any_request() -> None:
    """Four rows for which a guess of even chances is too dear, and requests too short to be probed by themselves."""
    controller = Controller(ControlOptions(), StepTimes({(4, 4 + n, 0): 1.0 + 0.2 * n for n in range(9)}))
    lengths = []
    for step in range(200):
        key = f"request {step // 5}"
        [length] = controller.offer([(key, DRAFT)], others=3)
        controller.observe(key, length, length)
        lengths.append(length)
    assert lengths[:8] == [0] * 7 + [1]
    assert lengths[-1] == 5


def test_no_offers_cost_nothing() -> None:
    controller = Controller(ControlOptions(), times(0.1))
    assert controller.offer([], others=16) == []
    assert not controller._requests


def test_a_longer_context_may_make_drafts_too_dear() -> None:
    short = {(1, 1 + n, 64): 1.0 + 0.1 * n for n in range(9)}
    controller = Controller(ControlOptions(), StepTimes(short | {(1, 1, 1024): 3.0, (1, 9, 1024): 40.0}))
    assert controller.could_pay(1, 64) == 5
    assert controller.could_pay(1, 4096) == 0
    assert controller.offer([("a", DRAFT)], context=64) != [0]
    assert controller.offer([("a", DRAFT)], context=4096) == [0]


def ask(controller: Controller, cost: float, right: bool, steps: int) -> list[int]:
    """Lengths asked of a proposer that takes `cost` seconds per token, whose drafts are all right or all wrong."""
    price = lambda rows, tokens: cost * tokens  # noqa: E731  one object, as the tables are kept by it
    lengths = []
    for _ in range(steps):
        [length] = controller.wanted([("a", 4)], 0, price)
        lengths.append(length)
        if length:
            [verified] = controller.offer([("a", Draft(tuple(range(length)), 0))])
            controller.observe("a", verified, verified if right else 0)
    return lengths


def test_a_proposer_that_takes_time_is_asked_for_what_pays() -> None:
    assert ask(Controller(ControlOptions(), times(0.1)), 0.05, True, 60)[-1] == 4
    assert ask(Controller(ControlOptions(), times(0.1)), 5.0, True, 300) == [0] * 300
    wrong = ask(Controller(ControlOptions(probe_interval=20), times(0.1)), 0.05, False, 400)[200:]
    assert wrong.count(0) == 190
    assert wrong.count(1) == 10  # what is asked for as a probe is verified


def test_a_proposer_that_takes_time_under_the_other_policies() -> None:
    assert ask(Controller(ControlOptions("fixed", num_tokens=3), None), 9.0, False, 5) == [3] * 5
    off = ask(Controller(ControlOptions("threshold", probe_interval=10), None), 9.0, False, 41)
    assert off == [4] * 8 + ([0] * 9 + [1]) * 3 + [0] * 3
    assert Controller(ControlOptions("fixed"), None).wanted([], 0, lambda rows, tokens: 1.0) == []


def test_nothing_is_probed_where_even_right_drafts_would_not_pay() -> None:
    assert run(Controller(ControlOptions(probe_interval=5), times(1.5)), 5, 300) == [0] * 300


def test_another_proposer_is_preferred_where_it_promises_more() -> None:
    cheap = lambda rows, tokens: 0.01 * tokens  # noqa: E731
    dear = lambda rows, tokens: 5.0 * tokens  # noqa: E731
    controller = Controller(ControlOptions(probe_interval=1000), times(0.1), {7: 0.9})
    found = Draft((1, 2, 3), 0)
    assert controller.prefers("a", found, 7, 3, cheap, 1)  # 0.5 so far, the other 0.9
    assert not controller.prefers("a", found, 7, 3, dear, 1)
    for _ in range(60):
        controller.offer([("a", found)])
        controller.observe("a", 1, 1)
    assert not controller.prefers("a", found, 7, 3, cheap, 1)  # nearly always right now
    assert controller.prefers(
        "a", Draft((1,), 4), 7, 3, cheap, 1
    )  # another kind of evidence, of which nothing is known
    assert not Controller(ControlOptions("fixed"), None).prefers("a", found, 7, 3, cheap, 1)


def test_what_is_found_is_tried_now_and_then_though_another_promises_more() -> None:
    cheap = lambda rows, tokens: 0.01 * tokens  # noqa: E731
    controller = Controller(ControlOptions(probe_interval=10), times(0.1), {7: 0.9})
    preferred = [controller.prefers("a", Draft((1,), 0), 7, 3, cheap, 1) for _ in range(80)]
    assert preferred.count(False) == 10  # little is known yet: one of eight
    assert preferred[:8] == [True] * 7 + [False]


def after_a_busy_moment(added: float, steps: int) -> list[int]:
    """Lengths offered after ten steps with drafts that took eight times as long as measured. Then steps take what was
    measured, with `added` times as much for drafted tokens; drafts are right."""
    times = StepTimes({(1, 1 + n, 0): 1.0 + 0.2 * n for n in range(9)})
    controller = Controller(ControlOptions(), times)
    for _ in range(10):
        controller.offer([("a", DRAFT)])
        controller.observe("a", 1, 0)
        controller.observe_step(1, 2, 8 * 1.2)
    assert controller.could_pay(1) == 0
    lengths = []
    for _ in range(steps):
        [length] = controller.offer([("b", DRAFT)])
        lengths.append(length)
        controller.observe("b", length, length)
        controller.observe_step(1, 1 + length, 1.0 + added * 0.2 * length)
    return lengths


def test_a_busy_moment_does_not_end_drafting_for_ever() -> None:
    lengths = after_a_busy_moment(1.0, 3000)
    assert not any(lengths[: DOUBT_INTERVAL - 1])
    assert lengths[-1000:] == [5] * 1000


def test_what_was_learned_is_doubted_ever_more_rarely_while_it_holds() -> None:
    lengths = after_a_busy_moment(8.0, 20_000)
    drafted = [step for step, length in enumerate(lengths) if length]
    assert len(drafted) < 200
    assert max(b - a for a, b in pairwise(drafted)) > LONGEST_DOUBT_INTERVAL / 2


def test_a_probe_is_of_the_kind_that_was_asked_for() -> None:
    controller = Controller(ControlOptions(probe_interval=1), times(0.6))
    price = lambda rows, tokens: 0.35 * tokens  # noqa: E731
    assert controller.wanted([("a", 3)], 7, price) == [1]  # a probe
    assert controller._requests["a"].probe == 7
    controller.offer([("a", Draft((1, 2), 0))])  # the model said nothing, something else was found meanwhile
    assert controller._requests["a"].probe is None
