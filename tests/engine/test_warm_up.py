from dataclasses import replace

import pytest
from core_fakes import Bench
from tiny_drafter import Drafter
from tiny_engine import BACKENDS, TinyEngine, spell, tiny_model, tokens
from tiny_head import Head

from slipstream import SamplingParams
from slipstream.engine.cost_model import work_of
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.warm_up import warm_up
from slipstream.sampling.grammar.spec import GrammarSpec

pytestmark = pytest.mark.fast


def test_three_requests_of_typical_shapes_that_are_nobodys() -> None:
    bench = Bench(max_num_seqs=8)
    bench.clock.now = 5.0
    assert warm_up(bench.core) > 0.0
    rows = [max(len(row.tokens) for row in plan.rows) for plan in bench.runner.plans]
    assert rows[0] == 7  # as long as the fake vocabulary
    assert max(len(plan.rows) for plan in bench.runner.plans) == 4
    stats = bench.core.stats()
    assert stats.warm_up_time > 0.0
    assert (stats.num_finished, stats.num_output_tokens, stats.num_prompt_tokens, stats.kv_blocks_used) == (0, 0, 0, 0)
    bench.add("a", seed=None)
    bench.run()


def test_it_teaches_what_steps_cost() -> None:
    bench = Bench(max_num_seqs=8)
    model = bench.scheduler._cost_model

    def answer(plan: StepPlan) -> StepResult:
        bench.clock.now += 0.01 + 0.001 * plan.num_tokens
        return bench.runner.model.run(plan)

    bench.runner.answer = answer
    assert model.estimate(work_of([(9, 1)])) is None
    warm_up(bench.core)
    assert model.estimate(work_of([(9, 1)])) == pytest.approx(0.011, rel=0.05)


def test_seeds_drawn_by_the_engine_are_those_without_a_warm_up() -> None:
    cold, warm = Bench(seed=5), Bench(seed=5)
    warm_up(warm.core)
    for bench in (cold, warm):
        bench.add("a", seed=None)
        bench.run()
    assert cold.outputs["a"].outputs[0].token_ids == warm.outputs["a"].outputs[0].token_ids


@pytest.mark.parametrize("max_model_len", [2, 3, 5, 40])
def test_short_contexts(max_model_len: int) -> None:
    bench = Bench(blocks=16, max_model_len=max_model_len, max_num_seqs=1, max_num_batched_tokens=4)
    warm_up(bench.core)
    assert bench.core.stats().kv_blocks_used == 0


def test_a_short_queue_is_no_obstacle() -> None:
    bench = Bench(max_num_seqs=1, max_queued=2, max_queued_tokens=1)
    warm_up(bench.core)
    assert bench.core.stats().warm_up_time > 0.0


PROMPT = (5, 17, 60, 2, 33, 33, 8)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SAMPLED = SamplingParams(temperature=1.2, max_tokens=12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_model_drafts_for_every_kind_and_keeps_nothing(backend: str) -> None:
    drafter = Drafter(backend, noise=0.3, num_tokens=3)
    engine = TinyEngine(tiny_model(backend=backend), backend=backend, drafts=drafter.make)
    warm_up(engine.core)
    assert drafter.fed("warm-up-short-0") == [8, 1, 1]
    assert drafter.fed("warm-up-long-0")[0] > 90  # all that the context has room for
    assert max(len(plan.rows) for plan in drafter.runner.plans) == 4
    drafter.idle()
    warmed = engine.core.stats()
    assert (warmed.num_drafts, warmed.num_draft_tokens, warmed.time_saved) == (0, 0, 0.0)
    cold = TinyEngine(
        tiny_model(backend=backend), backend=backend, drafts=Drafter(backend, noise=0.3, num_tokens=3).make
    )
    requests = [(PROMPT, GREEDY), (PROMPT, replace(SAMPLED, seed=4)), (PROMPT, SAMPLED)]
    assert tokens(engine.answer(requests)) == tokens(cold.answer(requests))
    assert engine.core.stats().num_draft_tokens == cold.core.stats().num_draft_tokens > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_head_drafts_for_every_kind_and_keeps_nothing(backend: str) -> None:
    head = Head(backend, right=True, num_tokens=3)
    engine = head.engine()
    warm_up(engine.core)
    assert head.fed("warm-up-short-0") == [7, 1, 1]
    assert head.fed("warm-up-long-0")[0] > 90
    assert max(len(step) for step in head.runner.steps) == 4
    head.idle()
    cold = Head(backend, right=True, num_tokens=3)
    requests = [(PROMPT, GREEDY), (PROMPT, replace(SAMPLED, seed=4))]
    other = cold.engine()
    assert tokens(engine.answer(requests)) == tokens(other.answer(requests))
    assert engine.core.stats().num_draft_tokens == other.core.stats().num_draft_tokens > 0


def test_a_drafter_gets_no_more_rows_than_the_engine_runs() -> None:
    drafter = Drafter("reference", num_tokens=2)
    warm_up(TinyEngine(drafts=drafter.make, max_num_seqs=2).core)
    assert max(len(plan.rows) for plan in drafter.runner.plans) == 2


def test_a_drafter_that_cannot_compute_is_told_of() -> None:
    drafter = Drafter("reference", num_tokens=2)
    engine = TinyEngine(drafts=drafter.make)

    def fail(plan: StepPlan) -> StepResult:
        raise MemoryError("no room for the draft")

    drafter.runner.execute = fail  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="no room for the draft"):
        warm_up(engine.core)
    drafter.model.check()
    assert not drafter.model._followers


def test_the_vocabulary_is_prepared_for_grammars_then_and_not_before() -> None:
    engine = TinyEngine()
    compiler = engine.core._grammars
    assert compiler is not None
    engine.answer([(PROMPT, GREEDY)])
    assert compiler._vocabulary is None
    warm_up(engine.core)
    prepared = compiler._vocabulary
    assert prepared is not None
    engine.core.prepare(replace(GREEDY, grammar=GrammarSpec.choice([spell([1, 2])])))
    assert compiler._vocabulary is prepared
