from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.head_states import HeadStates
from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast
SAMPLING = RowSampling(SamplingParams(), 0, 1, ())


def step(*rows: tuple[str, int, int, bool]) -> StepPlan:
    """(request, first position, tokens, wants states)."""
    return StepPlan(
        0,
        tuple(
            PlanRow(name, (0,) * count, start, (), 0, 0, False, SAMPLING, wants_states=wants)
            for name, start, count, wants in rows
        ),
    )


def states(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def test_rows_are_kept_apart_and_only_of_requests_that_want_them() -> None:
    kept = HeadStates(100)
    kept(step(("a", 0, 2, True), ("b", 5, 1, False), ("c", 3, 3, True)), states(0, 1, 9, 3, 4, 5))
    assert (kept.known("a"), kept.known("b"), kept.known("c")) == ((0, 2), (0, 0), (3, 6))
    assert kept.read("c", 4, 6).tolist() == [[4.0], [5.0]]
    kept.forget("c")
    kept.forget("nobody")
    assert kept.known("c") == (0, 0)


def test_a_step_may_reuse_its_array() -> None:
    kept, array = HeadStates(100), states(1, 2)
    kept(step(("a", 0, 2, True)), array)
    array[:] = 0
    assert kept.read("a", 0, 2).tolist() == [[1.0], [2.0]]


def test_states_behind_a_gap_begin_anew() -> None:
    kept = HeadStates(100)
    kept(step(("a", 0, 2, True)), states(0, 1))
    kept(step(("a", 4, 2, True)), states(4, 5))
    assert kept.known("a") == (4, 6)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9), st.none() | st.integers(0, 20)), max_size=12),
    st.integers(1, 15),
)
@settings(max_examples=100, deadline=None)
def test_the_newest_state_of_every_position_and_no_more_than_asked(
    moves: list[tuple[int, int, int | None]], most: int
) -> None:
    """Against a dictionary: what is computed again replaces itself and all behind it; a gap empties."""
    kept, model, end, clock = HeadStates(most), {}, 0, 0.0
    for back, count, read in moves:
        start = max(0, end - back) if back < 12 else end + 3
        values = [clock := clock + 1 for _ in range(count)]
        kept(step(("a", start, count, True)), states(*values))
        model = {at: value for at, value in model.items() if at < start}
        if model and not min(model) <= start <= max(model) + 1:
            model = {}
        model |= {start + i: value for i, value in enumerate(values)}
        end = start + count
        model = {at: value for at, value in model.items() if at >= end - most}
        first, stop = kept.known("a")
        assert list(range(first, stop)) == sorted(model)
        assert kept.read("a", first, stop)[:, 0].tolist() == [model[at] for at in sorted(model)]
        middle = (first + stop) // 2
        assert kept.read("a", middle, stop)[:, 0].tolist() == [model[at] for at in range(middle, stop)]
        if read is not None:
            until = min(first + read, stop - 1)
            kept.forget_before("a", until)
            model = {at: value for at, value in model.items() if at >= until}
