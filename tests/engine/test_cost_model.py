import random

import pytest
from scheduling_fakes import FakeModel
from scheduling_loop import Loop, request, right

from slipstream.engine.cost_model import NO_WORK, LinearCostModel, StepWork, plan_work, work_of

pytestmark = pytest.mark.fast


def true_cost(work: StepWork, per_token: float = 2e-4) -> float:
    return 3e-3 + per_token * work.tokens + 5e-4 * work.rows + 1e-6 * work.context + 1e-8 * work.pairs


def random_step(rng: random.Random) -> StepWork:
    decodes = [(rng.randint(1, 2000), 1) for _ in range(rng.randint(1, 16))]
    return work_of([*decodes, (rng.randint(0, 6000), rng.randint(1, 600))])


def trained(steps: int = 80, per_token: float = 2e-4, model: LinearCostModel | None = None) -> LinearCostModel:
    rng, model = random.Random(1), model or LinearCostModel()
    for _ in range(steps):
        step = random_step(rng)
        model.observe(step, true_cost(step, per_token))
        model.estimate(step)
    return model


def chunks(seconds: float = 1e-3, repeat: int = 20) -> LinearCostModel:
    model = LinearCostModel()
    for tokens in (1, 50, 100, 200, 300) * repeat:
        model.observe(work_of([(0, tokens)]), seconds * tokens)
    return model


def test_pairs_are_those_of_every_token_but_the_first_of_its_row_with_all_up_to_itself() -> None:
    for start, num_tokens in ((0, 1), (7, 1), (0, 4), (7, 5)):
        pairs = sum(start + i for i in range(2, num_tokens + 1))
        assert NO_WORK.with_row(start, num_tokens) == StepWork(num_tokens, 1, start + num_tokens, pairs)
    assert work_of([(7, 5), (3, 1)]) == NO_WORK.with_row(7, 5).with_row(3, 1)
    assert work_of([]) == NO_WORK


@pytest.mark.parametrize("drafts", [None, right(2)])
def test_the_work_of_a_plan_is_that_of_its_rows(drafts: object) -> None:
    loop = Loop(drafts=drafts)  # type: ignore[arg-type]
    loop.add(request("a", 9, 20), request("b", 5, 20))
    for _ in range(3):
        plan = loop.plan()
        assert plan_work(plan) == work_of((row.start, len(row.tokens)) for row in plan.rows)
        loop.apply(plan)
    assert isinstance(loop.model, FakeModel)


def test_knows_nothing_before_it_has_seen_enough() -> None:
    assert trained(7).estimate(work_of([(0, 1)])) is None
    assert trained(8).estimate(work_of([(0, 1)])) is not None


def test_estimates_reach_to_twice_the_largest_step() -> None:
    model = LinearCostModel(min_observations=2)
    assert model.most_tokens == 64
    for tokens, reach in ((40, 64), (3, 80), (50, 100), (20, 100), (300, 600)):
        model.observe(work_of([(0, tokens)]), 1.0)
        assert model.most_tokens == reach


def test_learning_late_is_learning_nearly_the_same() -> None:
    asked, late, rng = LinearCostModel(), LinearCostModel(), random.Random(2)
    for _ in range(90):
        step = random_step(rng)
        seconds = true_cost(step) * rng.uniform(0.9, 1.1)
        asked.observe(step, seconds)
        late.observe(step, seconds)
        asked.estimate(step)
    step = random_step(random.Random(3))
    assert asked.estimate(step) == pytest.approx(late.estimate(step), rel=0.05)


@pytest.mark.parametrize(
    "step", [work_of([(9, 1)]), work_of([(250, 1)] * 3 + [(4000, 250)]), work_of([(900, 1)] * 16 + [(0, 600)])]
)
def test_learns_a_linear_cost(step: StepWork) -> None:
    assert trained().estimate(step) == pytest.approx(true_cost(step), rel=0.01)


def test_follows_a_machine_that_became_slower() -> None:
    model, step = trained(300, per_token=8e-4, model=trained()), work_of([(250, 1)] * 3 + [(4000, 250)])
    assert model.estimate(step) == pytest.approx(true_cost(step, 8e-4), rel=0.07)


def test_a_long_prompt_does_not_make_decodes_look_dearer() -> None:
    model, streams = trained(), [(100, 1)] * 8
    for start in range(0, 8000, 200):
        step = work_of([*streams, (start, 200)])
        model.observe(step, true_cost(step))
    assert model.estimate(work_of(streams)) == pytest.approx(true_cost(work_of(streams)), rel=0.05)


def test_identical_steps_for_a_long_time_keep_the_numbers_finite() -> None:
    model, step, other = trained(), work_of([(500, 1)] * 8), work_of([(250, 1)] * 3 + [(4000, 250)])
    for _ in range(20_000):
        model.observe(step, true_cost(step))
    assert model.estimate(step) == pytest.approx(true_cost(step), rel=1e-6)
    assert trained(60, model=model).estimate(other) == pytest.approx(true_cost(other), rel=0.05)


def test_decodes_do_not_make_it_forget_prompts_but_follow_the_machine() -> None:
    model, step = trained(), work_of([(500, 1)] * 8)
    prompt, rng = work_of([(500, 1)] * 8 + [(100, 200)]), random.Random(4)
    for _ in range(3000):
        model.observe(step, true_cost(step) * rng.uniform(0.9, 1.1))
    assert model.estimate(prompt) == pytest.approx(true_cost(prompt), rel=0.05)
    for _ in range(200):
        model.observe(step, 2 * true_cost(step))
    assert model.estimate(step) == pytest.approx(2 * true_cost(step), rel=0.08)


def test_nothing_gets_cheaper_by_doing_more() -> None:
    model, rng = LinearCostModel(), random.Random(2)
    for _ in range(50):
        step = work_of([(100, 1), (0, rng.randint(1, 600))])
        model.observe(step, 0.5 - 1e-4 * step.tokens)
    few, many = (model.estimate(work_of([(100, 1), (0, n)])) for n in (1, 600))
    assert few is not None
    assert many is not None
    assert few <= many


def test_without_scatter_there_is_no_margin() -> None:
    assert chunks().margin == 1.0


def test_one_step_in_ten_exceeds_the_margin() -> None:
    model, rng = LinearCostModel(), random.Random(2)
    exceeded, steps = 0, 4000
    for step in range(steps + 200):
        work = work_of([(0, rng.randint(1, 300))])
        seconds = (0.05 + 1e-3 * work.tokens) * rng.choice([0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3])
        expected = model.estimate(work)
        if step >= 200:
            assert expected is not None
            exceeded += seconds > expected * model.margin
        model.observe(work, seconds)
    assert 0.06 < exceeded / steps < 0.16
    assert 1.0 < model.margin < 1.5


def test_the_margin_has_a_limit() -> None:
    model, rng = LinearCostModel(), random.Random(3)
    for _ in range(300):
        work = work_of([(0, rng.randint(1, 300))])
        model.observe(work, 1e-3 * work.tokens * rng.choice([0.1, 5.0]))
        model.estimate(work)
    assert 1.4 < model.margin <= 2.0


def test_steps_measured_beforehand_are_lessons_but_not_about_scatter() -> None:
    steps = {
        (rows, rows * tokens, context): true_cost(work_of([(context, tokens)] * rows))
        for rows in (1, 2, 4, 8, 16)
        for tokens in (1, 2, 3, 6)
        for context in (256, 1024)
    }
    model = LinearCostModel.taught(steps)
    assert model.margin == 1.0
    assert model.most_tokens == 2 * 16 * 6
    step = work_of([(300, 1)] * 5)
    assert model.estimate(step) == pytest.approx(true_cost(step), rel=0.01)
    assert LinearCostModel.taught({}).estimate(step) is None
