"""Native draws and log-probabilities against the definitions in NumPy: equal, not close."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipstream.engine.plan import RowSampling
from slipstream.errors import RequestError
from slipstream.kernels.cpu.native import Sampler, ThreadPool, kernel_sets
from slipstream.sampling.logprobs import token_logprob
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.rng import gumbel
from slipstream.sampling.sampler import sample_token

POOL = ThreadPool(2)
SAMPLERS = [Sampler(POOL, name) for name in kernel_sets()]

VALUES = st.sampled_from([0.0, -0.0, 1.0, -0.5, -2.5, 1.0000001, -math.inf, 3e38, -3e38]) | st.floats(-30, 30, width=32)
ROWS = st.lists(VALUES, min_size=1, max_size=70)
TEMPERATURES = st.sampled_from([0.0, 1.0, 0.7, 1e-6, 1e-40, 5e-324, 1e300]) | st.floats(0.05, 5)
PARAMS = st.builds(
    SamplingParams,
    temperature=TEMPERATURES,
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, 100]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999999]),
    min_p=st.sampled_from([0.0, 0.0, 1.0, 0.3, 0.01, 5e-324]),
)
SEEDS = st.integers(0, 2**64 - 1)


def draw_of(params: SamplingParams, seed: int, position: int) -> tuple[float, int, float, float, int, int]:
    return params.temperature, params.top_k, params.top_p, params.min_p, seed, position


def expected(row: NDArray[np.float32], params: SamplingParams, seed: int, position: int) -> int | str:
    try:
        return sample_token(row, RowSampling(params, seed, 0, ()), position=position)
    except RequestError as error:
        return str(error)


def drawn(sampler: Sampler, row: NDArray[np.float32], params: SamplingParams, seed: int, position: int) -> int | str:
    [token], faults = sampler.draw(row[None], [(0, draw_of(params, seed, position))])
    if not faults:
        return token
    [(index, fault)] = faults
    assert (index, token) == (0, -1)
    return "the model produced " + ("NaN logits." if fault == "nan" else f"infinite logits (maximum {fault}).")


@settings(max_examples=400, deadline=None)
@given(ROWS, PARAMS, SEEDS, st.integers(0, 2**64 - 1))
def test_any_row_and_parameters(values: list[float], params: SamplingParams, seed: int, position: int) -> None:
    row = np.array(values, np.float32)
    want = expected(row, params, seed, position)
    for sampler in SAMPLERS:
        assert drawn(sampler, row, params, seed, position) == want
        if isinstance(want, int):
            assert sampler.draw_processed(row.astype(np.float64), draw_of(params, seed, position)) == (want, "")


@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.95),
        SamplingParams(top_p=0.999, temperature=1.7),
        SamplingParams(top_k=50),
        SamplingParams(top_k=3000, top_p=0.5),
        SamplingParams(min_p=0.05),
        SamplingParams(min_p=0.05, top_p=0.8),
        SamplingParams(min_p=0.01, top_p=0.8, top_k=20, temperature=0.8),
    ],
)
def test_large_vocabularies_in_one_call(params: SamplingParams, spread: float) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0.0, spread, (4, 5003)).astype(np.float32)
    logits[1] = np.round(logits[1], 1)  # ties
    want = [expected(logits[i], params, 7 + i, 2**33 + i) for i in range(4)]
    for sampler in SAMPLERS:
        order = [3, 0, 2, 1, 0]
        tokens, faults = sampler.draw(logits, [(i, draw_of(params, 7 + i, 2**33 + i)) for i in order])
        assert (tokens, faults) == ([want[i] for i in order], [])


def test_processed_scores_may_exceed_float32() -> None:
    scores = np.array([1e6, 1e6 - 0.01, -1.7e308, 1.7e308, -math.inf, 1e6 - 1.0])
    for seed in range(50):
        for values in (scores, np.delete(scores, 3)):
            params = SamplingParams(logit_bias={0: 0.0}, seed=seed)
            with np.errstate(over="ignore"):
                scaled = values - values.max()
            want = int((scaled + gumbel(seed, 3, len(values))).argmax())
            assert all(s.draw_processed(values, draw_of(params, seed, 3)) == (want, "") for s in SAMPLERS)


def test_a_faulty_row_harms_no_other() -> None:
    logits = np.zeros((5, 40), np.float32)
    logits[0, 39] = logits[2, 7] = math.nan
    logits[2, 3] = logits[3, 5] = math.inf
    logits[1, 33] = 1.0
    logits[4] = -math.inf
    for sampler in SAMPLERS:
        tokens, faults = sampler.draw(logits, [(i, (0.0, 0, 1.0, 0.0, 0, 0)) for i in range(5)])
        assert tokens == [-1, 33, -1, -1, -1]
        assert faults == [(0, "nan"), (2, "nan"), (3, "+inf"), (4, "-inf")]


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(0, 90), st.data())
def test_logprobs(values: list[float], num_top: int, data: st.DataObject) -> None:
    row = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(row) - 1))
    try:
        want = token_logprob(row, token, num_top)
    except RequestError as error:
        for sampler in SAMPLERS:
            [(*_, fault)] = sampler.logprobs(row[None], [(0, token, num_top)])
            assert (fault or "none") in str(error)  # noqa: PT017  not what is tested
        return
    for sampler in SAMPLERS:
        [(logprob, rank, top, fault)] = sampler.logprobs(row[None], [(0, token, num_top)])
        assert (logprob, rank, tuple(top), fault) == (want.logprob, want.rank, want.top, "")


def test_logprobs_of_a_large_vocabulary() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (3, 20011)).astype(np.float32)
    for sampler in SAMPLERS:
        asked = [(2, 17, 5), (0, 20010, 1000), (2, 3, 0)]
        answers = sampler.logprobs(logits, asked)
        for (logprob, rank, top, fault), (i, token, n) in zip(answers, asked, strict=True):
            want = token_logprob(logits[i], token, n)
            assert (logprob, rank, tuple(top), fault) == (want.logprob, want.rank, want.top, "")


@pytest.mark.parametrize("row", [-1, 2])
def test_refuses_what_is_out_of_range(row: int) -> None:
    logits = np.zeros((2, 4), np.float32)
    with pytest.raises(IndexError):
        SAMPLERS[0].draw(logits, [(row, (0.0, 0, 1.0, 0.0, 0, 0))])
    with pytest.raises(IndexError):
        SAMPLERS[0].logprobs(logits, [(0, 4, 1)])
    with pytest.raises(ValueError, match="temperature"):
        SAMPLERS[0].draw(logits, [(0, (math.nan, 0, 1.0, 0.0, 0, 0))])
