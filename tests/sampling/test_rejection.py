"""Tokens verified with drafts have the target's distribution, however bad the drafts. Seeds are fixed, and so is the
outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from slipstream.engine.plan import RowSampling
from slipstream.errors import RequestError
from slipstream.kernels.select import select_kernels
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.rejection import judge
from slipstream.sampling.rng import acceptance
from slipstream.sampling.sampler import SampleRow, sample_rows

from . import plain

START = 0  # the prompt
ANY = SamplingParams()
NEVER = -np.inf
TARGETS = {
    "plain": [[1.0, 0.2, -0.5, 0.6], [0.0, 1.5, 0.3, -1.0], [0.7, 0.1, 0.4, 0.9], [-0.3, 0.8, 1.1, 0.0]],
    "ties": [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.5], [0.0, 1.0, 1.0, 1.0]],
    "near zero": [
        [0.0, -25.0, 0.5, -40.0],
        [-30.0, 0.0, 0.2, -21.0],
        [0.0, 0.3, -60.0, 0.1],
        [0.9, 0.0, -25.0, -800.0],
    ],
    "forbidden": [
        [0.0, -np.inf, 0.5, 0.2],
        [0.3, 0.0, -np.inf, -np.inf],
        [-np.inf, 0.3, 0.0, 0.1],
        [0.2, 0.5, 0.4, 0.0],
    ],
}
DRAFTS = np.array([[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.5, 0.0], [0.1, 0.0, 0.0, 0.9]])
Kind = (
    str  # "drawn": by DRAFTS, judged by rejection; "compared": the same, without its distribution; "chosen": likeliest
)


def draft(kind: Kind, last: int, count: int, rng: np.random.Generator) -> tuple[tuple[int, ...], object]:
    tokens: list[int] = []
    probs = []
    for _ in range(count):
        q = DRAFTS[last]
        probs.append(tuple((token, float(share)) for token, share in enumerate(q) if share > 0))
        last = int(q.argmax()) if kind == "chosen" else int(rng.choice(len(q), p=q))
        tokens.append(last)
    return tuple(tokens), tuple(probs) if kind == "drawn" else None


def answers(
    kind: Kind, target: Sequence[Sequence[float]], params: SamplingParams, k: int, length: int, number: int
) -> tuple[NDArray[np.int64], float]:
    """(`number` answers of `length` tokens, each step verifying k drafted ones; the share of accepted drafts)."""
    rng = np.random.default_rng(7)
    table = np.array(target, np.float32)
    found = np.zeros((number, length), np.int64)
    accepted = drafted = 0
    for seed in range(number):
        tokens = [START]
        while len(tokens) <= length:
            guess, probs = draft(kind, tokens[-1], k, rng)
            context = RowSampling(params, seed, 1, (), tuple(tokens))
            row = SampleRow(context, len(tokens), guess, draft_probs=probs)  # type: ignore[arg-type]
            (result,) = sample_rows(table[[tokens[-1], *guess]], [row])
            assert result.error is None
            assert result.tokens[: result.accepted] == guess[: result.accepted]
            drafted += min(k, result.accepted + 1)
            accepted += result.accepted
            tokens += result.tokens
        found[seed] = tokens[1 : length + 1]
    return found, accepted / drafted


def following(target: Sequence[Sequence[float]], params: SamplingParams, tokens: Sequence[int]) -> NDArray[np.float64]:
    row = [float(np.float32(x)) for x in target[tokens[-1]]]
    return np.array(plain.distribution(plain.processed(row, params, tokens, 1, ()), params))


def check(counts: NDArray[np.float64], expected: NDArray[np.float64], most: float) -> None:
    """Chi-square, with what is expected less than five times taken together; and total variation."""
    number = counts.sum()
    assert counts[expected == 0].sum() == 0
    total_variation = 0.5 * np.abs(counts / number - expected).sum()
    assert total_variation < most
    often = expected * number >= 5
    seen, wanted = [*counts[often]], [*(expected[often] * number)]
    if (rest := expected[~often].sum() * number) > 1e-6 * number:
        seen.append(counts[~often].sum())
        wanted.append(rest)
    if len(seen) > 1:
        # Some hundred of them are looked at.
        assert stats.chisquare(seen, np.array(wanted) * (sum(seen) / sum(wanted))).pvalue > 0.0005


@pytest.mark.parametrize(
    ("kind", "name"), [*(("drawn", name) for name in TARGETS), ("chosen", "plain"), ("chosen", "forbidden")]
)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_every_position_has_the_targets_distribution(kind: Kind, k: int, name: str) -> None:
    target, number = TARGETS[name], 400
    found, _ = answers(kind, target, ANY, k, k + 1, number)
    step = np.array([following(target, ANY, [last]) for last in range(4)])
    expected = np.eye(4)[START]
    for position in range(k + 1):
        expected = expected @ step
        check(np.bincount(found[:, position], minlength=4).astype(float), expected, 0.085)


SETTINGS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.6),
    SamplingParams(top_k=2),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.5),
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(logit_bias={1: 1.5, 3: -1.0}),
    SamplingParams(allowed_token_ids=(0, 2, 3)),
    SamplingParams(bad_words_ids=((0, 2), (3,))),
]


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_pairs_of_tokens_under_everything_that_changes_the_distribution(params: SamplingParams) -> None:
    target, number = TARGETS["plain"], 1000
    found, _ = answers("drawn", target, params, 2, 2, number)
    expected = np.zeros((4, 4))
    for first, second in product(range(4), repeat=2):
        p = following(target, params, [START])[first]
        expected[first, second] = p * following(target, params, [START, first])[second] if p else 0.0
    counts = np.bincount(4 * found[:, 0] + found[:, 1], minlength=16).astype(float)
    check(counts, expected.reshape(-1), 0.09)


class Alternating:
    """A grammar: a token below 2, then one from 2 on, and so on."""

    finished = False

    def __init__(self, count: int) -> None:
        self.count = count

    def allowed(self, scores: NDArray[np.floating], context: object, *, position: int) -> NDArray[np.bool_]:
        return (np.arange(len(scores)) < 2) == (self.count % 2 == 0)

    def advance(self, tokens: Sequence[int]) -> None:
        self.count += len(tokens)


def test_a_grammar() -> None:
    table, rng, number = np.array(TARGETS["plain"], np.float32), np.random.default_rng(3), 1000
    counts = np.zeros(16)
    for seed in range(number):
        tokens = [START]
        while len(tokens) <= 2:
            guess, probs = draft("drawn", tokens[-1], 2, rng)
            grammar = partial(Alternating, len(tokens) - 1)
            row = SampleRow(RowSampling(ANY, seed, 1, ()), len(tokens), guess, grammar, probs)  # type: ignore[arg-type]
            tokens += sample_rows(table[[tokens[-1], *guess]], [row])[0].tokens
        counts[4 * tokens[1] + tokens[2]] += 1
    first = np.exp(table[START, :2]) / np.exp(table[START, :2]).sum()
    expected = np.zeros((4, 4))
    for token in (0, 1):
        expected[token, 2:] = first[token] * np.exp(table[token, 2:]) / np.exp(table[token, 2:]).sum()
    check(counts, expected.reshape(-1), 0.06)


def test_acceptance_is_what_theory_says() -> None:
    """Rejection: sum min(p, q). Comparing a drawn draft: sum p q. Comparing the likeliest of q: its p."""
    p, q = following(TARGETS["plain"], ANY, [START]), DRAFTS[START]
    rates = {kind: answers(kind, TARGETS["plain"], ANY, 1, 1, 1500)[1] for kind in ("drawn", "compared", "chosen")}
    assert rates["drawn"] == pytest.approx(np.minimum(p, q).sum(), abs=0.04)
    assert rates["compared"] == pytest.approx((p * q).sum(), abs=0.04)
    assert rates["chosen"] == pytest.approx(p[q.argmax()], abs=0.04)


def test_the_test_notices_a_wrong_distribution() -> None:
    found, _ = answers("drawn", TARGETS["plain"], SamplingParams(temperature=1.4), 2, 2, 1200)
    with pytest.raises(AssertionError):
        check(np.bincount(found[:, 0], minlength=4).astype(float), following(TARGETS["plain"], ANY, [START]), 0.05)


def test_the_right_distribution_is_always_accepted() -> None:
    scaled = np.log(np.array([0.5, 0.25, 0.25]) / 0.5)
    q = ((0, 0.5), (1, 0.25), (2, 0.25))
    assert [judge(scaled, None, 1, q, seed, 9) for seed in range(300)] == [1] * 300


def test_what_is_left_when_p_and_q_differ_by_rounding_only() -> None:
    seed = next(seed for seed in range(10_000) if acceptance(seed, 5) > 0.999)
    scaled = np.log(np.array([0.5, 0.5]) / 0.5)
    assert judge(scaled, None, 1, ((0, 0.5005), (1, 0.5005)), seed, 5) in (0, 1)


def test_a_token_that_may_not_come_is_never_accepted() -> None:
    scaled = np.array([0.0, -0.5, -1.0])
    kept = np.array([0, 2])
    assert {judge(scaled, kept, 1, ((1, 1.0),), seed, 3) for seed in range(200)} == {0, 2}
    outside = judge(scaled, None, 1, ((1, 0.5), (77, 0.5)), 4, 3)
    assert outside in (0, 1, 2)


@pytest.mark.parametrize(("token", "q"), [(1, ((0, 1.0),)), (1, ((0, 1.0), (1, 0.0))), (5, ((5, 1.0),))])
def test_a_draft_that_cannot_have_been_drawn_fails_its_row_alone(token: int, q: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(RequestError, match="cannot have been drawn"):
        judge(np.zeros(3), None, token, q, 1, 1)
    context = RowSampling(ANY, 1, 1, ())
    rows = [SampleRow(context, 1, (token,), draft_probs=(q,)), SampleRow(context, 1)]
    first, second = sample_rows(np.zeros((3, 3), np.float32), rows)
    assert "cannot have been drawn" in (first.error or "")
    assert second.tokens


def test_greedy_rows_compare() -> None:
    greedy = SamplingParams(temperature=0.0)
    logits = np.array([[0.0, 1.0, 0.5]] * 2, np.float32)
    row = SampleRow(RowSampling(greedy, 1, 1, ()), 1, (1,), draft_probs=(((1, 0.01), (2, 0.99)),))
    assert sample_rows(logits, [row])[0].tokens == (1, 1)
    wrong = replace(row, draft_tokens=(2,))
    assert sample_rows(logits, [wrong])[0].tokens == (1,)


def test_both_backends_give_the_same_verdicts() -> None:
    ops = select_kernels("cpu", num_threads=1).sampling
    assert ops is not None
    logits = np.random.default_rng(1).standard_normal((3, 50)).astype(np.float32)
    q = tuple((token, 0.02) for token in range(50))
    params = SamplingParams(logprobs=2, top_k=20)
    rows = [SampleRow(RowSampling(params, seed, 1, ()), 1, (seed % 50, 3), draft_probs=(q, q)) for seed in range(200)]
    for row in rows:
        assert sample_rows(logits, [row], ops) == sample_rows(logits, [row])
