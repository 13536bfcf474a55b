from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import RequestError
from slipstream.sampling.logprobs import token_logprob, token_logprobs

from . import plain

pytestmark = pytest.mark.fast


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32) | st.sampled_from([1.0, 2.0]), min_size=1, max_size=10),
    st.integers(0, 9),
    st.integers(0, 12),
)
def test_is_the_plain_log_softmax(row: list[float], token: int, num_top: int) -> None:
    token %= len(row)
    result = token_logprob(np.array(row, dtype=np.float32), token, num_top)
    probabilities = plain.softmax(row)
    order = plain.ranking(row)
    assert result.token_id == token
    assert result.logprob == pytest.approx(math.log(probabilities[token]), rel=1e-12, abs=1e-12)
    assert order[result.rank - 1] == token
    assert [i for i, _ in result.top] == order[:num_top]
    for i, logprob in result.top:
        assert logprob == pytest.approx(math.log(probabilities[i]), rel=1e-12, abs=1e-12)


def test_extreme_and_forbidden_logits() -> None:
    result = token_logprob(np.array([1e4, -1e4, -np.inf], dtype=np.float32), 2, 3)
    assert result.logprob == -math.inf
    assert result.rank == 3
    assert result.top == ((0, 0.0), (1, -2e4), (2, -math.inf))


def test_prompt_tokens_one_row_each() -> None:
    logits = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], dtype=np.float32))
    first, second = token_logprobs(logits, [0, 1], 1)
    assert (first.token_id, first.rank, second.token_id, second.rank) == (0, 2, 1, 2)
    assert first.logprob == pytest.approx(math.log(0.25), rel=1e-6)
    assert first.top[0][0] == 1
    assert second.top[0][0] == 0
    with pytest.raises(ValueError, match="2 rows of logits for 1 tokens"):
        token_logprobs(logits, [0], 1)


@pytest.mark.parametrize(
    ("row", "token", "message"),
    [
        ([0.0, math.nan], 0, "NaN"),
        ([0.0, math.inf], 0, r"infinite logits \(maximum \+inf\)"),
        ([-math.inf, -math.inf], 0, r"infinite logits \(maximum -inf\)"),
        ([0.0, 1.0], 2, "token id 2 is not in the vocabulary of 2"),
        ([0.0, 1.0], -1, "token id -1"),
    ],
)
def test_bad_input(row: list[float], token: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        token_logprob(np.array(row, dtype=np.float32), token, 1)
