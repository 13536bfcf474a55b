"""When a draft model is asked, and what is learned of its cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduling_loop import request

from slipstream.engine.asked_model import MODEL, SMALL_LAG, AskedModel
from slipstream.engine.request import Request
from slipstream.engine.speculation import SpeculativeDrafts
from slipstream.spec.controller import DOUBT_INTERVAL, Controller, ControlOptions
from slipstream.spec.cost_line import ALWAYS, SOMETIMES
from slipstream.spec.proposer import NOTHING, Draft
from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast


class Model:
    """Says 7, 7, ...; `seconds` pass meanwhile."""

    name = "draft_model"
    chance = 0.9

    def __init__(self, seconds: float = 0.01, lag: int = 1) -> None:
        self.now, self.seconds, self.lags = 0.0, seconds, lag
        self.calls: list[list[tuple[str, int]]] = []

    def clock(self) -> float:
        return self.now

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[Draft]:
        self.now += self.seconds
        self.calls.append([(each.id, count) for each, count in wanted])
        return [Draft((7,) * count) for _, count in wanted]

    def warm_up(self, wanted: Sequence[tuple[Request, int]]) -> None: ...
    def close(self, key: str) -> None: ...
    def lag(self, request: Request) -> int:
        return self.lags

    def cost(self, num_rows: int, num_tokens: int) -> float:
        return 0.01 * num_tokens

    def feeding(self, num_tokens: int) -> float:
        return 0.1 * num_tokens


class Finds:
    """A proposer that finds the same draft for everybody."""

    name = "ngram"

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def open(self, key: str, tokens: Sequence[int]) -> None: ...
    def extend(self, key: str, tokens: Sequence[int]) -> None: ...
    def close(self, key: str) -> None: ...
    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        return [self.draft for _ in wanted]


def controller(num_tokens: int = 1) -> Controller:
    times = StepTimes({(rows, rows * n, 0): 1.0 + 0.1 * rows * n for rows in (1, 2) for n in (1, 2, 4)})
    return Controller(ControlOptions(num_tokens=num_tokens), times, {MODEL: 0.9})


def test_a_cost_that_was_foretold_too_low_is_learned_and_then_nothing_is_asked() -> None:
    model = Model(seconds=2.0)  # beside a step of 1.1: right drafts would not pay
    asked = AskedModel(model, controller(), model.clock)
    found = [asked.ask([each], [(0, 1)]) for each in [request("a", 5)] * 3000]  # doubted ever more rarely
    assert found[0] == [(0, Draft((7,), MODEL))]
    assert len(model.calls) < 55
    assert not any(found[-10:])
    assert asked.taken() == pytest.approx(2.0 * len(model.calls))
    assert asked.taken() == 0.0


def test_a_cost_as_foretold_changes_nothing() -> None:
    model = Model()
    asked = AskedModel(model, controller(), model.clock)
    assert all(asked.ask([each], [(0, 1)]) for each in [request("a", 5)] * 60)


@pytest.mark.parametrize("lag", [1, SMALL_LAG + 1])
def test_a_model_that_a_busy_moment_made_look_dear_is_asked_again(lag: int) -> None:
    model = Model(seconds=100.0)
    asked = AskedModel(model, controller(), model.clock)
    each = request("a", 5)
    each.max_tokens = 2000
    while asked._cost.current(1, 1) < 1.0:
        asked.ask([each], [(0, 1)])
    model.seconds, model.lags = 0.01, lag
    later = []
    for _ in range(2000):
        later.append(bool(asked.ask([each], [(0, 1)])))
        model.lags = 1 if later[-1] else lag
    assert not any(later[: DOUBT_INTERVAL - 1])
    assert all(later[-100:])


def test_only_some_calls_are_learned_from_later_on() -> None:
    model = Model()
    asked = AskedModel(model, controller(), model.clock)
    each = request("a", 5)
    for _ in range(ALWAYS):
        asked.ask([each], [(0, 1)])
    model.seconds = 0.9
    for _ in range(SOMETIMES - 1):
        asked.ask([each], [(0, 1)])
    assert asked._cost.current(1, 1) == 0.01
    asked.ask([each], [(0, 1)])
    assert asked._cost.current(1, 1) > 0.01


def test_a_prompt_that_is_fed_first_says_nothing_about_the_cost() -> None:
    model = Model(seconds=0.9, lag=SMALL_LAG)
    asked = AskedModel(model, controller(), model.clock)
    for _ in range(30):
        assert asked.ask([request("a", 5)], [(0, 1)])
    assert asked._cost.current(1, 1) == 0.01


def test_a_found_draft_gives_way_to_a_better_one_and_comes_back() -> None:
    model = Model(seconds=0.0)
    proposer = Finds(Draft((3,), 2))  # of a kind that is right every second time, for all that is known
    drafts = SpeculativeDrafts(proposer, controller(), model=model)
    each = request("a", 5, max_tokens=50)
    said = [drafts.propose([each])[0] for _ in range(16)]
    assert said[0] == Draft((7,), MODEL)
    assert said.count(Draft((3,), 2)) == 2  # tried now and then
    only = request("b", 5, max_tokens=50)
    only.drafter = "ngram"
    assert drafts.propose([only]) != [Draft((7,), MODEL)]
    model.lags = 10 * SMALL_LAG  # too far behind to be worth it
    assert drafts.propose([each])[0] in (Draft((3,), 2), NOTHING)
