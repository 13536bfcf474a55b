"""Drafts that are judged: which requests' are, and that answers have the target's distribution."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from replay import always
from scipy import stats
from tiny_drafter import Drafter
from tiny_engine import BACKENDS, TinyEngine, spell

from slipstream import SamplingParams
from slipstream.engine.plan import PlanRow
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.spec.proposer import Draft

PROMPT = (5, 17, 60, 42, 9)
TOKENS = (11, 42, 71)
Q = ((11, 0.6), (42, 0.3), (98, 0.1))  # one of them is not allowed in some tests


class Drawn:
    """Proposes tokens that are drawn from Q, whatever came before."""

    name = "drawn"

    def __init__(self) -> None:
        self._rng = random.Random(3)

    def open(self, key: str, tokens: Sequence[int]) -> None:
        pass

    def extend(self, key: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Sequence[tuple[str, int]]) -> list[Draft]:
        ids, shares = zip(*Q, strict=True)
        return [Draft(tuple(self._rng.choices(ids, shares, k=n)), 0, (Q,) * n) for _, n in wanted]

    def close(self, key: str) -> None:
        pass

    def cost(self, num_rows: int, num_tokens: int) -> float:
        return 0.0


def engine(backend: str = "reference", **settings: object) -> TinyEngine:
    values: dict[str, object] = {"backend": backend, "seed": None, "judge_drafts": True, "drafts": always(Drawn(), 2)}
    return TinyEngine(**(values | settings))  # type: ignore[arg-type]


def judged(rows: Sequence[PlanRow]) -> bool:
    drafted = [row for row in rows if row.num_draft]
    assert drafted
    kinds = {row.draft_probs is not None for row in drafted}
    assert len(kinds) == 1
    assert all(row.draft_probs is None or len(row.draft_probs) == row.num_draft for row in rows)
    return kinds.pop()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 1.0}, True),
        ({"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5}, True),
        ({"temperature": 1.0, "seed": 3}, False),
        ({"temperature": 0.0}, False),
        ({"temperature": 1.0, "grammar": GrammarSpec.regex(f"[{spell([1])}-{spell([90])}]+")}, False),
    ],
)
def test_whose_drafts_are_judged(params: dict[str, object], expected: bool) -> None:
    values = SamplingParams(max_tokens=12, ignore_eos=True, **params)  # type: ignore[arg-type]
    for settings, here in (({}, expected), ({"judge_drafts": False}, False), ({"seed": 7}, False)):
        run = engine(**settings)
        run.answer([(PROMPT, values)])
        assert judged(run.runner.rows("r0")) is here


@pytest.mark.parametrize("backend", BACKENDS)
def test_pairs_of_tokens_have_the_targets_distribution(backend: str) -> None:
    number = 768
    allowed = {"allowed_token_ids": TOKENS, "ignore_eos": True}
    run = engine(backend, max_num_seqs=32, num_blocks=400)
    completions = []
    for _ in range(number // 64):
        [output] = run.answer([(PROMPT, SamplingParams(n=64, max_tokens=3, **allowed))])  # type: ignore[arg-type]
        completions += [each.token_ids for each in output.outputs]
    assert judged([row for plan in run.runner.plans for row in plan.rows])
    counts = np.zeros((3, 3))
    for first, second, _ in completions:
        counts[TOKENS.index(first), TOKENS.index(second)] += 1
    start = following(backend, PROMPT)
    expected = np.array([start[i] * following(backend, (*PROMPT, token)) for i, token in enumerate(TOKENS)])
    assert stats.chisquare(counts.reshape(-1), expected.reshape(-1) * number).pvalue > 0.005
    totals = run.core.stats()
    assert 0 < totals.num_accepted_tokens < totals.num_draft_tokens


def following(backend: str, tokens: tuple[int, ...], among: Sequence[int] = TOKENS) -> NDArray[np.float64]:
    """Probabilities of a few tokens, nothing else being allowed."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=98)
    [output] = TinyEngine(backend=backend).answer([(tokens, params)])
    [entry] = output.outputs[0].logprobs or ()
    known = dict(entry.top) | {entry.token_id: entry.logprob}
    weights = np.exp([known[token] for token in among])
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def likeliest(backend: str, tokens: tuple[int, ...], count: int) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=count)
    [output] = TinyEngine(backend=backend).answer([(tokens, params)])
    return [token for token, _ in (output.outputs[0].logprobs or ())[0].top]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_model_draws_for_those_that_are_judged(backend: str) -> None:
    number, k = 512, 3
    drafter = Drafter(backend, noise=0.05, num_tokens=2)
    run = engine(backend, drafts=drafter.make, max_num_seqs=32, num_blocks=400)
    params = SamplingParams(n=64, max_tokens=3, top_k=k, ignore_eos=True)
    pairs: Counter[tuple[int, ...]] = Counter()
    for _ in range(number // 64):
        [output] = run.answer([(PROMPT, params)])
        pairs.update(tuple(each.token_ids[:2]) for each in output.outputs)
    assert judged([row for plan in run.runner.plans for row in plan.rows])
    expected = {}
    firsts = likeliest(backend, PROMPT, k)
    for first, p in zip(firsts, following(backend, PROMPT, firsts), strict=True):
        seconds = likeliest(backend, (*PROMPT, first), k)
        for second, q in zip(seconds, following(backend, (*PROMPT, first), seconds), strict=True):
            expected[first, second] = p * q * number
    assert set(pairs) <= set(expected)
    often = [pair for pair, count in expected.items() if count >= 5]
    seen = [*(pairs[pair] for pair in often), number - sum(pairs[pair] for pair in often)]
    wanted = [*(expected[pair] for pair in often), number - sum(expected[pair] for pair in often)]
    if wanted[-1] < 1e-6:
        seen, wanted = seen[:-1], wanted[:-1]
    assert stats.chisquare(seen, np.array(wanted) * (sum(seen) / sum(wanted))).pvalue > 0.005
    totals = run.core.stats()
    assert 0.2 < totals.num_accepted_tokens / totals.num_draft_tokens < 1.0
    drafter.idle()


def test_a_seeded_request_is_answered_as_without_whatever_the_mode() -> None:
    params = SamplingParams(temperature=1.1, seed=4, max_tokens=20, logprobs=1)
    [expected] = TinyEngine().answer([(PROMPT, params)])
    drafter = Drafter("reference", noise=0.2)
    for drafts in (drafter.make, always(Drawn(), 2)):
        [ours] = engine(drafts=drafts).answer([(PROMPT, params)])
        assert ours.outputs[0].token_ids == expected.outputs[0].token_ids
        assert ours.outputs[0].logprobs == expected.outputs[0].logprobs


def test_log_probabilities_are_the_targets_own() -> None:
    """Of what was judged, too: each is that of its token behind the tokens before it."""
    params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, logprobs=2)
    [output] = engine(drafts=Drafter("reference", noise=0.2).make).answer([(PROMPT, params)])
    tokens = output.outputs[0].token_ids
    [fed] = TinyEngine().answer([((*PROMPT, *tokens), SamplingParams(max_tokens=1, prompt_logprobs=2))])
    assert output.outputs[0].logprobs == (fed.prompt_logprobs or [])[-len(tokens) :]
