"""The tokens drawn have the distribution that the settings define. Seeds are fixed, so the outcome is too."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slipstream.engine.plan import RowSampling
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import SampleRow, sample_rows

from . import plain

NUM_DRAWS = 4000
LOGITS = [1.0, 0.2, -0.5, 2.0, 0.0, -3.0, 1.5, 0.7]
HISTORY = (0, 3, 3, 6, 1)
NUM_PROMPT = 2

SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.8),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.75),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05),
    SamplingParams(repetition_penalty=1.6),
    SamplingParams(presence_penalty=1.1, frequency_penalty=0.4),
    SamplingParams(logit_bias={5: 3.5, 3: -1.0}),
    SamplingParams(allowed_token_ids=(1, 2, 5, 7), top_p=0.95),
    SamplingParams(bad_words_ids=((6, 1, 3), (4,))),
]


def expected_distribution(params: SamplingParams) -> np.ndarray:
    return np.array(plain.distribution(plain.processed(LOGITS, params, HISTORY, NUM_PROMPT, ()), params))


def draw(params: SamplingParams, *, by_seed: bool) -> np.ndarray:
    """Counts [V] of the draws, over many seeds at one position or over the positions of one seed."""
    logits = np.array([LOGITS], dtype=np.float32)
    counts = np.zeros(len(LOGITS), dtype=np.int64)
    for i in range(NUM_DRAWS):
        seed, position = (i, len(HISTORY)) if by_seed else (12345, len(HISTORY) + i)
        context = RowSampling(params, seed, NUM_PROMPT, (), HISTORY)
        (result,) = sample_rows(logits, [SampleRow(context, position)])
        counts[result.tokens[0]] += 1
    return counts


def check(counts: np.ndarray, expected: np.ndarray) -> None:
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], expected[possible] * NUM_DRAWS).pvalue > 0.005
    total_variation = 0.5 * np.abs(counts / NUM_DRAWS - expected).sum()
    assert total_variation < 0.03


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_over_seeds(params: SamplingParams) -> None:
    check(draw(params, by_seed=True), expected_distribution(params))


@pytest.mark.parametrize("params", [SETTINGS[0], SETTINGS[4]], ids=["plain", "top_p"])
def test_over_positions_of_one_seed(params: SamplingParams) -> None:
    check(draw(params, by_seed=False), expected_distribution(params))


def test_the_test_notices_a_wrong_distribution() -> None:
    counts = draw(SamplingParams(), by_seed=True)
    with pytest.raises(AssertionError):
        check(counts, expected_distribution(SamplingParams(temperature=1.15)))
