"""What SpeculativeDrafts tells its proposer and its controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from replay import Replay
from scheduling_loop import request

from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.engine.request import Request
from slipstream.engine.speculation import PATIENCE, REST, TIMED, WAKING, SpeculativeDrafts
from slipstream.sampling.params import SamplingParams
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.proposer import NOTHING, Draft
from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast


class Watched(Controller):
    """Lets everything through and remembers what it is told."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(ControlOptions(policy="fixed", num_tokens=num_tokens), None)
        self.offers: list[tuple[int, int, int]] = []  # rows with a draft, others, context
        self.observed: list[tuple[str, int, int]] = []
        self.steps: list[tuple[int, int, float, int]] = []
        self.forgotten: list[str] = []

    def offer(self, drafts, others=0, context=0):  # type: ignore[no-untyped-def]
        self.offers.append((len(drafts), others, context))
        return super().offer(drafts, others, context)

    def observe(self, key: str, verified: int, accepted: int) -> None:
        self.observed.append((key, verified, accepted))
        super().observe(key, verified, accepted)

    def observe_step(self, rows: int, tokens: int, seconds: float, context: int = 0) -> None:
        self.steps.append((rows, tokens, seconds, context))

    def forget(self, key: str) -> None:
        self.forgotten.append(key)
        super().forget(key)


def make(num_tokens: int = 3) -> tuple[SpeculativeDrafts, Replay, Watched]:
    replay, controller = Replay({}, wrong=0.0, vocabulary=7), Watched(num_tokens)
    return SpeculativeDrafts(replay, controller), replay, controller


def take(each: Request, tokens: Sequence[int], drafted: int, accepted: int) -> None:
    for token in tokens:
        each.append(token)
    each.stats.count_draft(drafted, accepted)


def test_a_sequence_is_opened_extended_and_closed_once() -> None:
    drafts, replay, controller = make()
    each = request("a", 5, max_tokens=20)
    drafts.propose([each])
    assert replay.open_sequences == {"a": each.tokens}
    take(each, (1, 2, 3), 2, 2)
    drafts.propose([each])
    assert replay.open_sequences == {"a": each.tokens}
    drafts.release(each)
    drafts.release(request("never seen", 3))
    assert not replay.open_sequences
    assert controller.forgotten == ["a"]


def test_what_came_of_a_draft_is_told_once() -> None:
    drafts, _, controller = make()
    each = request("a", 5, max_tokens=20)
    drafts.propose([each])
    drafts.propose([each])  # preempted meanwhile: nothing was verified
    take(each, (1, 2), 3, 1)
    drafts.propose([each])
    take(each, (4,), 0, 0)  # the draft was dropped for want of blocks
    drafts.propose([each])
    take(each, (5,), 2, 0)
    drafts.propose([each])
    assert controller.observed == [("a", 3, 1), ("a", 2, 0)]


def test_no_more_is_drafted_than_there_is_room_for() -> None:
    drafts, _, controller = make(num_tokens=3)
    rooms = [request(str(n), 4, max_tokens=n) for n in (1, 2, 3, 4, 9)]
    assert [len(draft.tokens) for draft in drafts.propose(rooms)] == [0, 1, 2, 3, 3]
    assert controller.offers == [(4, 1, 4)]


def test_what_wants_no_drafts_is_not_even_listened_to() -> None:
    drafts, replay, controller = make()
    off, some = request("off", 4, max_tokens=9), request("some", 4, max_tokens=9)
    off.max_draft, some.max_draft = 0, 2
    assert [len(draft.tokens) for draft in drafts.propose([off, some])] == [0, 2]
    assert set(replay.open_sequences) == {"some"}
    drafts.release(off)
    assert controller.forgotten == []


def row(tokens: int, *, draft: int = 0, samples: bool = True) -> PlanRow:
    sampling = RowSampling(SamplingParams(), 0, 1, ())
    return PlanRow("r", (1,) * tokens, 5, (0, 1), draft, 1 + draft if samples else 0, samples, sampling)


def test_only_steps_without_prefill_are_timed() -> None:
    drafts, _, controller = make()
    drafts.propose([request("r", 5, max_tokens=20)])
    drafts.observe_step(StepPlan(1, (row(1), row(4, draft=3))), 0.25)
    drafts.observe_step(StepPlan(2, (row(1), row(4))), 0.5)
    drafts.observe_step(StepPlan(3, (row(1), row(1, samples=False))), 0.5)
    assert controller.steps == [(2, 5, 0.25, 5)]


def timed(seconds: float = 0.25) -> tuple[SpeculativeDrafts, Controller]:
    """A step of one row takes one second and every further token a quarter."""
    times = StepTimes({(1, n, 0): 1.0 + seconds * (n - 1) for n in range(1, 9)})
    controller = Controller(ControlOptions(num_tokens=3), times)
    return SpeculativeDrafts(Replay({}, wrong=0.0, vocabulary=7), controller), controller


def step(tokens: int, name: str = "a") -> StepPlan:
    sampling = RowSampling(SamplingParams(), 0, 1, ())
    return StepPlan(1, (PlanRow(name, (1,) * tokens, 5, (0, 1), tokens - 1, tokens, True, sampling),))


def test_time_saved_is_what_right_tokens_would_have_taken_less_what_verifying_took() -> None:
    drafts, _ = timed()
    each = request("a", 5, max_tokens=20)
    drafts.propose([each])
    drafts.observe_step(step(4), 1.75)
    take(each, (1, 2, 3), 3, 2)
    drafts.propose([each])
    drafts.observe_step(step(3), 1.5)
    take(each, (1,), 2, 0)
    drafts.release(each)  # it ended with this step
    assert each.stats.time_saved == pytest.approx(2.0 - 0.75 - 0.5, rel=0.01)  # the second step's times have drifted


def test_neighbours_pay_for_drafts_too() -> None:
    times = StepTimes({(2, n, 0): 1.0 + 0.25 * (n - 2) for n in range(2, 9)})
    drafts = SpeculativeDrafts(Replay({}, wrong=0.0, vocabulary=7), Controller(ControlOptions(num_tokens=3), times))
    both = [request(name, 5, max_tokens=20) for name in "ab"]
    drafts.propose(both)
    drafts.observe_step(StepPlan(1, (*step(3, "a").rows, *step(1, "b").rows)), 1.5)
    take(both[0], (1, 2, 3), 2, 2)
    take(both[1], (1,), 0, 0)
    for each in both:
        drafts.release(each)
    assert [each.stats.time_saved for each in both] == pytest.approx([2 * 1.0 - 0.5, -0.5])


def test_without_step_times_nothing_is_said_about_time() -> None:
    drafts, _, _ = make()
    each = request("a", 5, max_tokens=20)
    drafts.propose([each])
    drafts.observe_step(step(4), 1.75)
    take(each, (1, 2, 3), 3, 2)
    drafts.release(each)
    assert each.stats.time_saved is None


class Nothing(Replay):
    """Finds something from the `begin`-th token of a sequence on."""

    begin = 10**9
    asked = 0

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        self.asked += len(wanted)
        return [
            draft if len(self.open_sequences[key]) >= self.begin else NOTHING
            for (key, _), draft in zip(wanted, super().propose(wanted), strict=True)
        ]


def test_requests_without_anything_to_verify_are_passed_over_in_most_steps() -> None:
    replay = Nothing({}, wrong=0.0, vocabulary=7)
    drafts = SpeculativeDrafts(replay, Controller(ControlOptions("threshold", num_tokens=3), None))
    each = request("a", 5, max_tokens=900)
    looked = []
    for _ in range(PATIENCE + 101):
        before = replay.asked
        drafts.propose([each])
        looked.append(replay.asked > before)
        take(each, (1,), 0, 0)
    assert looked[: PATIENCE + 1] == [True] * (PATIENCE + 1)
    assert looked[PATIENCE + 1 :] == ([False] * REST + [True]) * 25
    drafts.propose([each])  # passed over
    replay.begin = 0
    found = [bool(drafts.propose([each])[0].tokens) for _ in range(REST)]
    assert found == [False, False, True]
    assert replay.open_sequences["a"] == each.tokens
    take(each, (1, 2), 3, 1)
    drafts.propose([each])  # still passed over: what came of the draft is learned by the next look
    found = [bool(drafts.propose([each])[0].tokens) for _ in range(REST + WAKING)]
    assert found == [False] * (REST - 1) + [True] * WAKING + [False]  # awake for a while, as one token was right


def test_nobody_is_passed_over_where_every_draft_is_verified() -> None:
    replay = Nothing({}, wrong=0.0, vocabulary=7)
    drafts = SpeculativeDrafts(replay, Watched(3))
    each = request("a", 5, max_tokens=900)
    for _ in range(PATIENCE + 50):
        drafts.propose([each])
        take(each, (1,), 0, 0)
    assert replay.asked == PATIENCE + 50


def test_steps_without_drafts_are_timed_now_and_then() -> None:
    drafts, _, controller = make()
    for number in range(1, 4 * TIMED + 1):
        drafts.observe_step(replace(step(1), step=number), 0.5)
    assert controller.steps == [(1, 1, 0.5, 5)] * 4
