from __future__ import annotations

from math import log

import pytest

from slipstream.spec.drawing import distribution, draw

pytestmark = pytest.mark.fast

TOP = ((7, log(0.5)), (3, log(0.3)), (9, log(0.15)), (1, log(0.05)))


def shares(**params: float) -> dict[int, float]:
    return dict(distribution(TOP, **({"temperature": 1.0} | params)))  # type: ignore[arg-type]


def test_it_is_the_models_own_where_nothing_changes_it() -> None:
    assert shares() == pytest.approx({7: 0.5, 3: 0.3, 9: 0.15, 1: 0.05})


def test_what_is_left_out_is_shared_among_the_rest() -> None:
    assert dict(distribution(TOP[:2], temperature=1.0)) == pytest.approx({7: 0.625, 3: 0.375})


def test_temperature() -> None:
    assert shares(temperature=0.5) == pytest.approx(
        {7: 0.25 / 0.365, 3: 0.09 / 0.365, 9: 0.0225 / 0.365, 1: 0.0025 / 0.365}
    )
    assert shares(temperature=1e-300) == {7: 1.0}


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, {7}),
        ({"top_k": 9}, {7, 3, 9, 1}),
        ({"top_p": 0.5}, {7}),
        ({"top_p": 0.51}, {7, 3}),
        ({"top_p": 0.999999}, {7, 3, 9, 1}),
        ({"min_p": 0.29}, {7, 3, 9}),
        ({"min_p": 0.31}, {7, 3}),
        ({"min_p": 0.2, "top_k": 3, "top_p": 0.6}, {7, 3}),
    ],
)
def test_filters(params: dict[str, float], kept: set[int]) -> None:
    found = shares(**params)
    assert set(found) == kept
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_token_that_cannot_come_is_not_among_them() -> None:
    assert dict(distribution(((7, 0.0), (3, float("-inf"))), temperature=1.0)) == {7: 1.0}


def test_draws_follow_the_shares() -> None:
    probs = distribution(TOP, temperature=1.0)
    drawn = [draw(probs, (i + 0.5) / 1000) for i in range(1000)]
    assert {token: drawn.count(token) for token in (7, 3, 9, 1)} == {7: 500, 3: 300, 9: 150, 1: 50}
    assert draw(((4, 0.3), (5, 0.6)), 0.999) == 5  # shares that miss the sum by rounding
