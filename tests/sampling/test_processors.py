from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import RequestError
from slipstream.sampling import processors
from slipstream.sampling.params import SamplingParams

from . import plain

pytestmark = pytest.mark.fast

VOCAB = 8
TOKEN = st.integers(0, VOCAB - 1)
LOGIT = st.floats(-20, 20, width=32) | st.just(-math.inf)
ROW = st.lists(LOGIT, min_size=VOCAB, max_size=VOCAB)
IDS = st.lists(TOKEN, max_size=4).map(tuple)
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.3]),
    logit_bias=st.dictionaries(TOKEN, st.floats(-100, 100), max_size=3),
    allowed_token_ids=IDS,
    bad_words_ids=st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 4),
)


def apply(
    row: list[float], params: SamplingParams, history: list[int], prompt: int, stops: tuple[int, ...]
) -> list[float]:
    logits = np.array(row, dtype=np.float32)
    before = logits.copy()
    result = processors.apply_processors(
        logits,
        params,
        history=history,
        position=len(history),
        num_prompt_tokens=prompt,
        stop_token_ids=stops,
    )
    assert result.dtype == np.float64
    assert np.array_equal(logits, before)
    return result.tolist()


@settings(max_examples=200, deadline=None)
@given(ROW, PARAMS, st.lists(TOKEN, max_size=8), st.integers(0, 8), IDS)
def test_all_together_as_plain_python(
    row: list[float], params: SamplingParams, history: list[int], prompt: int, stops: tuple[int, ...]
) -> None:
    prompt = min(prompt, len(history))
    expected = plain.processed(row, params, history, prompt, stops)
    assert apply(row, params, history, prompt, stops) == expected
    if not processors.needs_processing(params, position=len(history), num_prompt_tokens=prompt):
        assert expected == row


def test_repetition_penalty_divides_positive_and_multiplies_negative() -> None:
    logits = np.array([2.0, -2.0, 0.0, 3.0])
    assert processors.penalize_repetition(logits, [0, 1, 1, 2], 2.0).tolist() == [1.0, -4.0, 0.0, 3.0]


def test_counts_leave_the_prompt_out() -> None:
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=0.5)
    assert apply([0.0, 0.0, 0.0], params, [0, 0, 1, 1, 1, 2], 3, ()) == [0.0, -2.5, -1.5]


@pytest.mark.parametrize("penalty", [1e308, 5e-324])
def test_repetition_penalties_beyond_all_measure_saturate(penalty: float) -> None:
    largest = np.finfo(np.float64).max
    scores = processors.penalize_repetition(np.array([9.0, -9.0, 0.0, -np.inf, 4.0]), [0, 1, 2, 3], penalty).tolist()
    expected = [9 / 1e308, -largest, 0.0] if penalty > 1 else [largest, -9 * 5e-324, 0.0]
    assert scores == [*expected, -np.inf, 4.0]


def test_repetition_counts_the_prompt() -> None:
    assert apply([4.0, 4.0, 4.0], SamplingParams(repetition_penalty=2.0), [0, 1], 1, ()) == [2.0, 2.0, 4.0]


def test_bias_comes_before_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: 3.0})
    assert apply([-1.0, 0.0], params, [0], 1, ()) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("history", "words", "banned"),
    [
        ([], [[5]], [5]),
        ([], [[1, 2]], []),
        ([1], [[1, 2]], [2]),
        ([1, 3], [[1, 2]], []),
        ([0, 1, 2], [[1, 2, 3], [2, 4], [0, 1, 2, 5], [0, 2, 6]], [3, 4, 5]),
        ([2], [[1, 2, 3]], []),
    ],
)
def test_bad_words(history: list[int], words: list[list[int]], banned: list[int]) -> None:
    assert processors.banned_by_bad_words(history, words) == banned


def test_min_tokens_bans_stop_ids_until_enough_are_out() -> None:
    params = SamplingParams(min_tokens=2)
    assert apply([1.0, 2.0], params, [0, 0, 0], 2, (1,)) == [1.0, -math.inf]
    assert apply([1.0, 2.0], params, [0, 0, 0, 0], 2, (1,)) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("params", "history", "stops"),
    [
        (SamplingParams(allowed_token_ids=(4,)), [], ()),
        (SamplingParams(logit_bias={4: 1.0}), [], ()),
        (SamplingParams(bad_words_ids=((4,),)), [], ()),
        (SamplingParams(min_tokens=1), [], (4,)),
        (SamplingParams(min_tokens=1), [], (-1,)),
        (SamplingParams(repetition_penalty=1.1), [4], ()),
        (SamplingParams(presence_penalty=1.0), [4], ()),
    ],
)
def test_a_token_outside_the_vocabulary(params: SamplingParams, history: list[int], stops: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"token id (4|-1) is not in the vocabulary of 4"):
        apply([0.0] * 4, params, history, 0, stops)


def test_a_history_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(RequestError, match="position 3 needs 3 earlier tokens, got 2"):
        processors.apply_processors(
            np.zeros(4, dtype=np.float32),
            SamplingParams(presence_penalty=1.0),
            history=[1, 2],
            position=3,
            num_prompt_tokens=1,
            stop_token_ids=(),
        )
