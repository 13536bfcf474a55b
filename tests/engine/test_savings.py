from __future__ import annotations

import pytest
from replay import Replay
from tiny_engine import TinyEngine

from slipstream import SamplingParams
from slipstream.engine.savings import FIRST_LOOK, LOOK_EVERY, Savings
from slipstream.engine.speculation import SpeculativeDrafts
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.ngram import NgramProposer
from slipstream.spec.step_times import StepTimes

BEGIN = "speculation is on but has "


def after(rows: int = FIRST_LOOK, *, timed: bool = True, **sums: float) -> str:
    savings = Savings(timed, **sums)  # type: ignore[arg-type]
    for _ in range(rows):
        savings.asked(1, 0, 0)
    return savings.warning


def test_nothing_is_said_before_enough_is_known() -> None:
    assert after(FIRST_LOOK - 1, seconds=10.0) == ""
    assert after(FIRST_LOOK, seconds=10.0) != ""


def test_nothing_is_said_where_it_pays() -> None:
    assert after(seconds=100.0, saved=1.0) == ""
    assert after(timed=False, accepted=20, drafted=30) == ""


@pytest.mark.parametrize(
    ("timed", "sums", "words"),
    [
        (
            True,
            {"seconds": 100.0, "saved": 0.5, "found": 20},
            "saved 0.5% of the time so far: something to draft was found for 1.0% of",
        ),
        (
            True,
            {"seconds": 100.0, "saved": -2.0, "found": 900, "drafted": 50, "accepted": 5},
            "cost 2.0% of the time so far: 10% of 50 drafted tokens were right.",
        ),
        (
            True,
            {"seconds": 100.0, "found": 900, "dear": 800},
            "saved 0.0% of the time so far: with as many requests at once",
        ),
        (
            True,
            {"seconds": 100.0, "found": 900},
            "saved 0.0% of the time so far: no draft promised to be worth verifying.",
        ),
        (
            False,
            {"found": 900, "drafted": 500, "accepted": 10},
            "brought 10 of 2010 tokens so far: 2% of 500 drafted tokens were right.",
        ),
    ],
)
def test_the_reason_is_given(timed: bool, sums: dict[str, float], words: str) -> None:
    assert after(timed=timed, **sums).startswith(BEGIN + words)


def test_it_is_said_once_and_stays() -> None:
    savings = Savings(timed=True, seconds=10.0)
    savings.asked(FIRST_LOOK, 0, 0)
    said = savings.warning
    savings.saved = 9.0
    savings.asked(LOOK_EVERY, 0, 0)
    assert savings.warning == said != ""


def test_what_paid_at_first_is_looked_at_again() -> None:
    savings = Savings(timed=True, seconds=10.0, saved=1.0)
    savings.asked(FIRST_LOOK, 0, 0)
    assert savings.warning == ""
    savings.seconds = 1000.0
    savings.asked(LOOK_EVERY - 1, 0, 0)
    assert savings.warning == ""
    savings.asked(1, 0, 0)
    assert savings.warning != ""


def test_an_engine_tells() -> None:
    """Drafts that are never right, under a policy that always verifies them."""
    engine = TinyEngine(
        drafts=lambda grammars: SpeculativeDrafts(
            Replay({}, wrong=1.0), Controller(ControlOptions("fixed", num_tokens=1), None), grammars
        )
    )
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    for _ in range(3):
        engine.answer([((1, 2, 3), params)] * 8)
    warning = engine.core.stats().speculation_warning
    assert warning.startswith(BEGIN + "brought ")
    assert warning.endswith(" drafted tokens were right.")


def test_an_engine_tells_what_was_saved() -> None:
    times = StepTimes({(1, n, 0): 1.0 + 0.01 * n for n in range(1, 9)})
    engine = TinyEngine(
        drafts=lambda grammars: SpeculativeDrafts(NgramProposer(), Controller(ControlOptions(), times), grammars)
    )
    [output] = engine.answer([((7, 8, 9, 10, 11, 12) * 4, SamplingParams(temperature=0.0, max_tokens=60))])
    stats = output.outputs[0].stats
    assert stats is not None
    assert stats.time_saved is not None
    assert 0.0 < stats.time_saved < stats.num_accepted_tokens  # steps turned out to take less than a second
    assert engine.core.stats().time_saved == stats.time_saved
    assert engine.core.stats().speculation_warning == ""
