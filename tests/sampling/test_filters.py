from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling import filters
from slipstream.sampling.params import SamplingParams

from . import plain

# Few distinct values, so that ties are common.
TIED_ROW = st.lists(st.sampled_from([0.0, -0.5, -1.0, -2.5, -math.inf]), min_size=1, max_size=12)
ROW = (TIED_ROW | st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=12)).map(lambda row: [0.0, *row])


def full_sort_nucleus(values: np.ndarray, top_p: float) -> list[int]:
    weights = np.exp(values - values.max())
    target = top_p * weights.sum()
    order = plain.ranking(values.tolist())
    mass = 0.0
    for n, i in enumerate(order, start=1):
        mass += weights[i]
        if mass >= target:
            return order[:n]
    return order


@settings(max_examples=150, deadline=None)
@given(ROW, st.integers(1, 14))
def test_top_ranked_is_the_head_of_the_ranking(row: list[float], count: int) -> None:
    assert filters.top_ranked(np.array(row), count).tolist() == plain.ranking(row)[:count]


def test_top_ranked_of_none() -> None:
    assert filters.top_ranked(np.zeros(3), 0).tolist() == []


@settings(max_examples=150, deadline=None)
@given(ROW, st.floats(0.001, 0.999))
def test_top_p_is_the_full_sort_one(row: list[float], top_p: float) -> None:
    values = np.array(row)
    assert filters.top_p_ranked(values, top_p).tolist() == full_sort_nucleus(values, top_p)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99, 0.999999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 5.0])
def test_top_p_of_a_large_vocabulary(top_p: float, spread: float) -> None:
    values = np.round(np.random.default_rng(3).normal(0.0, spread, 5000), 2)
    ranked = filters.top_p_ranked(values, top_p)
    assert ranked.tolist() == full_sort_nucleus(values, top_p)
    assert spread or len(ranked) == math.ceil(5000 * top_p)


@settings(max_examples=200, deadline=None)
@given(ROW, st.integers(0, 6), st.sampled_from([1.0, 0.9, 0.61, 0.3]), st.sampled_from([0.0, 0.07, 0.31, 1.0]))
def test_all_filters_together(row: list[float], top_k: int, top_p: float, min_p: float) -> None:
    kept = filters.kept_tokens(np.array(row), top_k=top_k, top_p=top_p, min_p=min_p)
    if (top_k, top_p, min_p) == (0, 1.0, 0.0):
        assert kept is None
        return
    assert kept is not None
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    # Sums at a border may round either way, so the plain result brackets ours; nearly always the two are one.
    narrow, wide = (
        {i for i, p in enumerate(plain.distribution(row, params, slack=slack)) if p > 0} for slack in (-1e-12, 1e-12)
    )
    assert narrow <= set(kept.tolist()) <= wide
    assert len(set(kept.tolist())) == len(kept)


def test_min_p_is_relative_to_the_best() -> None:
    values = np.log(np.array([0.5, 0.26, 0.24])) - np.log(0.5)
    assert filters.min_p_mask(values, 0.5).tolist() == [True, True, False]
    assert filters.min_p_mask(values, 1.0).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"top_k": 9}, [0, 2]), ({"top_p": 0.999999}, [0, 2]), ({"min_p": 5e-324}, [0, 2]), ({"top_k": 1}, [0])],
)
def test_forbidden_tokens_are_never_kept(options: dict[str, float], expected: list[int]) -> None:
    scaled = np.array([0.0, -np.inf, 0.0, -np.inf])
    kept = filters.kept_tokens(scaled, **options)  # type: ignore[arg-type]
    assert kept is not None
    assert sorted(kept.tolist()) == expected


def test_ties_go_to_the_lower_ids() -> None:
    kept = filters.kept_tokens(np.zeros(400), top_k=3)
    assert kept is not None
    assert kept.tolist() == [0, 1, 2]
    kept = filters.kept_tokens(np.zeros(400), top_p=0.75)
    assert kept is not None
    assert kept.tolist() == list(range(300))


def test_temperature_scales_exactly_and_never_overflows() -> None:
    logits = np.array([1e4, 1e4 - 1, -1e4, -np.inf], dtype=np.float32)
    assert filters.scale_by_temperature(logits, 2.0).tolist() == [0.0, -0.5, -1e4, -np.inf]
    assert filters.scale_by_temperature(logits, 1e-6).tolist() == [0.0, -1 / 1e-6, -2e4 / 1e-6, -np.inf]
    assert filters.scale_by_temperature(logits, 5e-324).tolist() == [0.0, -np.inf, -np.inf, -np.inf]
