from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.plan import RowSampling
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.sampling import SamplingOps
from slipstream.sampling.logprobs import token_logprob
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.rng import gumbel
from slipstream.sampling.sampler import SampledRow, SampleRow, sample_rows

from . import plain

VOCAB = 10


def context(params: SamplingParams, *, seed: int = 1, history: tuple[int, ...] = (0,), prompt: int = 1) -> RowSampling:
    return RowSampling(params=params, seed=seed, num_prompt_tokens=prompt, stop_token_ids=(9,), history=history)


def sample_one(row: list[float], params: SamplingParams, *, seed: int = 1, position: int = 1) -> SampledRow:
    rows = [SampleRow(context(params, seed=seed), position)]
    return sample_rows(np.array([row], dtype=np.float32), rows)[0]


class TestGreedy:
    def test_is_the_argmax_with_the_lowest_id_on_ties(self) -> None:
        assert sample_one([0.0, 3.0, 1.0, 3.0], SamplingParams(temperature=0)).tokens == (1,)

    def test_ignores_seed_and_filters(self) -> None:
        params = SamplingParams(temperature=0, top_k=2, top_p=0.5, min_p=0.5)
        assert {sample_one([0.0, 3.0, 2.9], params, seed=seed).tokens for seed in range(50)} == {(1,)}

    def test_takes_processed_logits(self) -> None:
        params = SamplingParams(temperature=0, logit_bias={0: 5.0})
        assert sample_one([0.0, 3.0, 2.9], params).tokens == (0,)

    def test_extreme_values(self) -> None:
        assert sample_one([-1e4, 1e4, -math.inf], SamplingParams(temperature=0)).tokens == (1,)


class TestDraw:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB),
        st.integers(0, 2**64 - 1),
        st.integers(1, 2**40),
        st.sampled_from(
            [
                SamplingParams(),
                SamplingParams(top_k=3, temperature=0.7),
                SamplingParams(top_p=0.83),
                SamplingParams(min_p=0.21, temperature=1.7),
                SamplingParams(top_k=6, top_p=0.91, min_p=0.013),
            ]
        ),
    )
    def test_is_gumbel_max_over_the_kept_tokens(
        self, row: list[float], seed: int, position: int, params: SamplingParams
    ) -> None:
        noise = gumbel(seed, position, VOCAB)
        best = {
            max(
                (i for i, p in enumerate(plain.distribution(row, params, slack=slack)) if p > 0),
                key=lambda i: (row[i] - max(row)) / params.temperature + noise[i],
            )
            for slack in (-1e-12, 1e-12)
        }
        (token,) = sample_one(row, params, seed=seed, position=position).tokens
        assert token in best

    @pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.95)])
    def test_equal_scores_go_to_the_lowest_id(self, params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("slipstream.sampling.sampler.gumbel", lambda *_: np.array([1.0, 0.0]))
        assert sample_one([3.0, 4.0], params).tokens == (0,)

    def test_does_not_depend_on_batch_mates(self) -> None:
        logits = np.random.default_rng(0).normal(0, 2, (6, VOCAB)).astype(np.float32)
        settings_ = [
            SamplingParams(),
            SamplingParams(temperature=0),
            SamplingParams(top_p=0.9),
            SamplingParams(top_k=4),
            SamplingParams(min_p=0.1),
            SamplingParams(repetition_penalty=1.5),
        ]
        rows = [SampleRow(context(params, seed=7 + i), 1) for i, params in enumerate(settings_)]
        together = sample_rows(logits, rows)
        assert together == [sample_rows(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
        assert together[::-1] == sample_rows(logits[::-1], rows[::-1])

    def test_tiny_temperature_is_greedy_and_huge_is_uniform(self) -> None:
        row = [1e4, -1e4, -math.inf, 1e4 - 1]
        for seed in range(30):
            assert sample_one(row, SamplingParams(temperature=1e-6), seed=seed).tokens == (0,)
            assert sample_one(row, SamplingParams(temperature=5e-324), seed=seed).tokens == (0,)
        drawn = {sample_one(row, SamplingParams(temperature=1e30), seed=seed).tokens[0] for seed in range(60)}
        assert drawn == {0, 1, 3}

    def test_logits_are_left_alone(self) -> None:
        logits = np.random.default_rng(0).normal(0, 2, (1, VOCAB)).astype(np.float32)
        before = logits.copy()
        sample_rows(logits, [SampleRow(context(SamplingParams(top_k=3, presence_penalty=1.0, logprobs=2)), 1)])
        assert np.array_equal(logits, before)


class TestVerify:
    @settings(max_examples=80, deadline=None)
    @given(
        st.integers(0, 2**32 - 1),
        st.integers(0, 5),
        st.booleans(),
        st.sampled_from(
            [
                SamplingParams(temperature=0, logprobs=2),
                SamplingParams(logprobs=1),
                SamplingParams(top_p=0.7, frequency_penalty=1.5),
                SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, temperature=0.3),
                SamplingParams(bad_words_ids=((1, 2), (3, 4), (5,)), temperature=2.0),
                SamplingParams(min_tokens=3, min_p=0.05),
            ]
        ),
    )
    def test_drafts_change_nothing(self, world: int, num_draft: int, good: bool, params: SamplingParams) -> None:
        """A fake model whose logits depend on the whole prefix; the proposer guesses right as far as it is told."""

        def model(tokens: tuple[int, ...]) -> np.ndarray:
            return np.random.default_rng([world, *tokens]).normal(0, 2, VOCAB).astype(np.float32)

        prompt = (1, 2, 3)
        plain_tokens: tuple[int, ...] = prompt
        plain_logprobs = []
        while len(plain_tokens) < 15:
            row = SampleRow(context(params, history=plain_tokens, prompt=3), len(plain_tokens))
            result = sample_rows(model(plain_tokens)[None], [row])[0]
            plain_tokens += result.tokens
            plain_logprobs += result.logprobs

        tokens: tuple[int, ...] = prompt
        logprobs = []
        guess = np.random.default_rng(world)
        while len(tokens) < 15:
            draft = tuple(int(t) for t in guess.integers(0, VOCAB, num_draft))
            if good:
                right = int(guess.integers(0, num_draft + 1))
                draft = (plain_tokens[len(tokens) :][:right] + draft)[:num_draft]
            logits = np.stack([model(tokens + draft[:i]) for i in range(num_draft + 1)])
            row = SampleRow(context(params, history=tokens, prompt=3), len(tokens), draft)
            result = sample_rows(logits, [row])[0]
            assert result.error is None
            assert len(result.tokens) == result.accepted + 1
            assert result.tokens[:-1] == draft[: result.accepted]
            tokens += result.tokens
            logprobs += result.logprobs
        assert tokens[:15] == plain_tokens
        assert logprobs[: len(plain_logprobs)] == plain_logprobs

    def test_counts(self) -> None:
        logits = np.zeros((4, 4), dtype=np.float32)
        logits[[0, 1, 2, 3], [3, 2, 1, 0]] = 1.0
        row = context(SamplingParams(temperature=0))
        assert sample_rows(logits, [SampleRow(row, 1, (3, 2, 1))])[0] == SampledRow((3, 2, 1, 0), 3)
        assert sample_rows(logits, [SampleRow(row, 1, (3, 0, 1))])[0] == SampledRow((3, 2), 1)
        assert sample_rows(logits, [SampleRow(row, 1, (0, 2, 1))])[0] == SampledRow((3,), 0)


class TestLogprobs:
    def test_are_raw_and_one_per_token(self) -> None:
        logits = np.random.default_rng(2).normal(0, 1, (3, VOCAB)).astype(np.float32)
        params = SamplingParams(temperature=0, logit_bias={4: 100.0}, logprobs=3)
        result = sample_rows(logits, [SampleRow(context(params), 1, (4, 4))])[0]
        assert result.tokens == (4, 4, 4)
        assert result.logprobs == tuple(token_logprob(row, 4, 3) for row in logits)

    def test_off_by_default(self) -> None:
        assert sample_one([0.0, 1.0], SamplingParams()).logprobs == ()


class TestFailures:
    @pytest.mark.parametrize(
        ("bad", "params", "message"),
        [
            ([math.nan] * 10, SamplingParams(), "NaN"),
            ([0.0] * 9 + [math.nan], SamplingParams(temperature=0), "NaN"),
            ([-math.inf] * 10, SamplingParams(), "maximum -inf"),
            ([math.inf] + [0.0] * 9, SamplingParams(top_k=2), "maximum +inf"),
            ([0.0] * 10, SamplingParams(allowed_token_ids=(9,), min_tokens=1), "forbid every token at position 1"),
            ([0.0] * 10, SamplingParams(logit_bias={10: 1.0}), "token id 10 is not in the vocabulary of 10"),
        ],
    )
    def test_stay_in_their_row(self, bad: list[float], params: SamplingParams, message: str) -> None:
        good = np.random.default_rng(1).normal(0, 1, (3, VOCAB)).astype(np.float32)
        logits = np.concatenate([good[:1], np.array([bad], dtype=np.float32), good[1:]])
        fine = [SampleRow(context(SamplingParams(), seed=3), 1), SampleRow(context(SamplingParams(), seed=4), 1, (2,))]
        results = sample_rows(logits, [fine[0], SampleRow(context(params), 1), fine[1]])
        assert [results[0], results[2]] == sample_rows(good, fine)
        assert results[1].tokens == ()
        assert results[1].accepted == 0
        assert results[1].error is not None
        assert message in results[1].error

    @pytest.mark.parametrize("ops", [None, cpu_kernels(1).sampling], ids=["numpy", "cpu"])
    @pytest.mark.parametrize("params", [SamplingParams(logprobs=1), SamplingParams(logit_bias={4: 1.0}, logprobs=1)])
    def test_behind_right_drafts_cost_none_of_them(self, ops: SamplingOps | None, params: SamplingParams) -> None:
        """Without drafts those tokens would have come, and one of them may have been the last."""
        logits = np.random.default_rng(1).normal(0, 1, (3, VOCAB)).astype(np.float32)
        row = context(params)
        first = sample_rows(logits[:1], [SampleRow(row, 1)], ops)[0]
        second = sample_rows(logits[1:2], [SampleRow(row, 2)], ops)[0]
        right = (*first.tokens, *second.tokens)
        logits[2, 3] = math.nan
        [found] = sample_rows(logits, [SampleRow(row, 1, right)], ops)
        assert found == SampledRow(right, 1, (*first.logprobs, *second.logprobs))
        [found] = sample_rows(logits[1:], [SampleRow(row, 2, right[1:])], ops)
        assert found == SampledRow(right[1:], 0, second.logprobs)
        [found] = sample_rows(logits[2:], [SampleRow(row, 3)], ops)
        assert found.error is not None

    def test_a_missing_history_is_an_error_of_the_row(self) -> None:
        row = SampleRow(context(SamplingParams(presence_penalty=1.0), history=()), 5)
        (result,) = sample_rows(np.zeros((1, VOCAB), dtype=np.float32), [row])
        assert result.error == "the token at position 5 needs 5 earlier tokens, got 0."

    def test_logits_must_fit_the_rows(self) -> None:
        row = SampleRow(context(SamplingParams()), 1, (2,))
        with pytest.raises(ValueError, match=r"shape \(1, 4\) for rows that need \[2, V\]"):
            sample_rows(np.zeros((1, 4), dtype=np.float32), [row])

    def test_no_rows(self) -> None:
        assert sample_rows(np.zeros((0, 4), dtype=np.float32), []) == []
