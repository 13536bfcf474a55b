from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec import allocate
from slipstream.spec.step_tables import StepTable

pytestmark = pytest.mark.fast

falling = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))


def choose(chances: list[list[float]], times: list[float], margin: float = 0.0) -> list[int]:
    """By cumulative chances, as the tests state them."""

    def follows(row: list[float], n: int) -> float:
        return row[n] / (row[n - 1] if n else 1.0)

    return allocate.choose_lengths(
        [lambda n, row=row: follows(row, n) for row in chances],  # type: ignore[misc]
        [len(row) for row in chances],
        StepTable.of(times),
        len(chances),
        margin=margin,
    )


def rate(chances: list[list[float]], lengths: list[int], times: list[float]) -> float:
    tokens = len(chances) + sum(sum(row[:n]) for row, n in zip(chances, lengths, strict=True))
    return tokens / times[sum(lengths)]


@settings(max_examples=150, deadline=None)
@given(st.lists(falling, min_size=1, max_size=3), st.data())
def test_no_other_choice_is_better(chances: list[list[float]], data: st.DataObject) -> None:
    total = sum(map(len, chances))
    steps = data.draw(st.lists(st.floats(0.0, 1.0), min_size=total, max_size=total))
    times = [1.0]
    for step in steps:
        times.append(times[-1] + step)
    chosen = choose(chances, times)
    best = max(rate(chances, list(each), times) for each in product(*(range(len(row) + 1) for row in chances)))
    assert rate(chances, chosen, times) == pytest.approx(best, rel=1e-12)


def test_free_tokens_are_all_taken() -> None:
    assert choose([[0.5, 0.2], [0.1]], [1.0] * 4) == [2, 1]


def test_costly_tokens_are_left() -> None:
    assert choose([[0.5, 0.2], [0.1]], [1.0, 2.0, 3.0, 4.0]) == [0, 0]


def test_a_cheap_pair_after_a_dear_first_is_found() -> None:
    times = [1.0, 2.0, 2.0, 2.0]
    assert choose([[0.9, 0.8, 0.7]], times) == [3]


def test_the_margin_keeps_doubtful_gains_away() -> None:
    chances, times = [[0.5]], [1.0, 1.45]
    assert choose(chances, times) == [1]
    assert choose(chances, times, margin=0.05) == [0]


def test_nothing_to_choose_from() -> None:
    assert choose([], [1.0]) == []
    assert choose([[], []], [1.0]) == [0, 0]


def test_chances_that_cannot_matter_are_not_asked_for() -> None:
    asked: list[int] = []

    def unlikely(n: int) -> float:
        asked.append(n)
        return 0.1

    table = StepTable.of([1.0, 1.5, 2.0, 2.5, 3.0])
    assert allocate.choose_lengths([unlikely], [4], table, 1) == [0]
    assert asked == [0]


def test_rows_without_a_draft_count_as_tokens_of_the_step() -> None:
    table = StepTable.of([1.0, 1.2])
    assert allocate.choose_lengths([lambda n: 0.5], [1], table, 1) == [1]
    assert allocate.choose_lengths([lambda n: 0.5], [1], table, 3) == [0]
