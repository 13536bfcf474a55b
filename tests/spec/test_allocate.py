from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.allocate import choose_lengths

pytestmark = pytest.mark.fast

falling = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))


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
    chosen = choose_lengths(chances, times.__getitem__)
    best = max(rate(chances, list(each), times) for each in product(*(range(len(row) + 1) for row in chances)))
    assert rate(chances, chosen, times) == pytest.approx(best, rel=1e-12)


def test_free_tokens_are_all_taken() -> None:
    assert choose_lengths([[0.5, 0.2], [0.1]], lambda n: 1.0) == [2, 1]


def test_costly_tokens_are_left() -> None:
    assert choose_lengths([[0.5, 0.2], [0.1]], lambda n: 1.0 + n) == [0, 0]


def test_a_cheap_pair_after_a_dear_first_is_found() -> None:
    times = [1.0, 2.0, 2.0, 2.0]
    assert choose_lengths([[0.9, 0.8, 0.7]], times.__getitem__) == [3]


def test_the_margin_keeps_doubtful_gains_away() -> None:
    chances, times = [[0.5]], [1.0, 1.45]
    assert choose_lengths(chances, times.__getitem__) == [1]
    assert choose_lengths(chances, times.__getitem__, margin=0.05) == [0]


def test_nothing_to_choose_from() -> None:
    assert choose_lengths([], lambda n: 1.0) == []
    assert choose_lengths([[], []], lambda n: 1.0) == [0, 0]
