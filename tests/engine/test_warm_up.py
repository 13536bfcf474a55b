import pytest
from core_fakes import Bench

from slipstream.engine.cost_model import work_of
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.warm_up import warm_up

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
