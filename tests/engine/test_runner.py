"""ModelRunner: rows in, answers out, with logits chosen by the test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.engine.rows import check_answer
from slipstream.engine.runner import ModelRunner
from slipstream.kernels.batch import ForwardBatch
from slipstream.kv.spec import KVSpec
from slipstream.kv.storage import KVStorage
from slipstream.sampling.logprobs import token_logprob
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast

VOCAB = 8


def logits_of(token: int, position: int) -> NDArray[np.float32]:
    """Whatever was fed decides: a fixed random row per (token, position)."""
    return np.random.default_rng([token, position]).standard_normal(VOCAB).astype(np.float32)


def best(token: int, position: int) -> int:
    return int(logits_of(token, position).argmax())


def runner(spoil: Callable[[int, int], bool] = lambda token, position: False) -> ModelRunner:
    def model(batch: ForwardBatch, kv: KVStorage) -> NDArray[np.float32]:
        rows = np.empty((len(batch.logits_rows), VOCAB), np.float32)
        for i, at in enumerate(batch.logits_rows):
            token, position = int(batch.token_ids[at]), int(batch.positions[at])
            rows[i] = np.nan if spoil(token, position) else logits_of(token, position)
        return rows

    return ModelRunner(model, KVStorage(KVSpec(1, 1, 2, 4), 16, [None]), lambda x: x)


def row(
    name: str,
    tokens: tuple[int, ...],
    *,
    start: int = 0,
    prompt: int = 99,
    drafts: int = 0,
    logits: int = 1,
    samples: bool = True,
    history: tuple[int, ...] = (),
    **params: object,
) -> PlanRow:
    sampling = SamplingParams(**({"temperature": 0.0} | params))  # type: ignore[arg-type]
    return PlanRow(
        name, tokens, start, (0, 1, 2, 3), drafts, logits, samples, RowSampling(sampling, 0, prompt, (), history)
    )


def run(*rows: PlanRow, spoil: Callable[[int, int], bool] = lambda token, position: False):
    plan = StepPlan(7, rows)
    result = runner(spoil).execute(plan)
    assert result.step == 7
    for each, answer in zip(rows, result.rows, strict=True):
        if answer.error is None:
            check_answer(each, answer)
    assert min(result.timing.build, result.timing.forward, result.timing.sample) >= 0.0
    return result.rows


def test_prefill_chunks_decodes_and_drafts_share_a_step() -> None:
    right = best(4, 5)
    rows = run(
        row("chunk", (1, 2, 3), logits=0, samples=False),
        row("decode", (3,), start=6),
        row("draft", (4, right, (best(right, 6) + 1) % VOCAB), start=5, drafts=2, logits=3),
        row("prompt", (5, 6)),
    )
    assert (rows[0].tokens, rows[0].accepted) == ((), 0)
    assert rows[1].tokens == (best(3, 6),)
    assert (rows[2].tokens, rows[2].accepted) == ((right, best(right, 6)), 1)
    assert rows[3].tokens == (best(6, 1),)


def test_a_step_without_any_logits() -> None:
    [answer] = run(row("chunk", (1, 2, 3), logits=0, samples=False))
    assert (answer.tokens, answer.error) == ((), None)


def test_logprobs_are_the_models_own() -> None:
    [answer] = run(row("a", (3,), start=6, logprobs=2, logit_bias={1: 50.0}))
    assert answer.tokens == (1,)
    assert answer.logprobs == (token_logprob(logits_of(3, 6), 1, 2),)


def test_prompt_logprobs_of_a_chunk_and_of_the_end_of_a_prompt() -> None:
    history = (1, 2, 3, 4, 5)
    chunk = row("a", (1, 2), prompt=5, logits=2, samples=False, history=history, prompt_logprobs=1)
    rest = row("b", (3, 4, 5), start=2, prompt=5, logits=3, history=history, prompt_logprobs=1)
    first, last = run(chunk, rest)
    assert first.prompt_logprobs == tuple(token_logprob(logits_of(t, t - 1), t + 1, 1) for t in (1, 2))
    assert last.prompt_logprobs == tuple(token_logprob(logits_of(t, t - 1), t + 1, 1) for t in (3, 4))
    assert last.tokens == (best(5, 4),)


@pytest.mark.parametrize(("asked", "spoiled"), [(None, 2), (0, 1), (0, 2)])
def test_a_row_that_cannot_be_sampled_does_not_harm_the_others(asked: int | None, spoiled: int) -> None:
    bad = row("bad", (1, 2), prompt=2, logits=1 if asked is None else 2, history=(1, 2), prompt_logprobs=asked)
    first, second, third = run(
        row("a", (3,), start=6), bad, row("c", (4,), start=5), spoil=lambda token, _: token == spoiled
    )
    assert (first.tokens, first.error) == ((best(3, 6),), None)
    assert second.error is not None
    assert "NaN" in second.error
    assert (third.tokens, third.error) == ((best(4, 5),), None)


def test_the_models_own_exception_is_not_hidden() -> None:
    def broken(batch: ForwardBatch, kv: KVStorage) -> None:
        raise RuntimeError("out of memory")

    plan = StepPlan(1, (row("a", (1,)),))
    with pytest.raises(RuntimeError, match="out of memory"):
        ModelRunner(broken, KVStorage(KVSpec(1, 1, 2, 4), 16, [None]), lambda x: x).execute(plan)
