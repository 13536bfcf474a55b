import random

import pytest

from slipstream.engine.cost_model import LinearCostModel

pytestmark = pytest.mark.fast


def true_cost(num_tokens: int, num_rows: int, context: int, per_token: float = 2e-4) -> float:
    return 3e-3 + per_token * num_tokens + 5e-4 * num_rows + 1e-6 * context


def trained(steps: int = 60, per_token: float = 2e-4, model: LinearCostModel | None = None) -> LinearCostModel:
    rng, model = random.Random(1), model or LinearCostModel()
    for _ in range(steps):
        step = rng.randint(1, 600), rng.randint(1, 16), rng.randint(1, 20000)
        model.observe(*step, true_cost(*step, per_token))
    return model


def test_knows_nothing_before_it_has_seen_enough() -> None:
    model = trained(7)
    assert (model.estimate(1, 1, 1), model.chunk_limit(1, 1, 1.0)) == (None, None)
    assert trained(8).estimate(1, 1, 1) is not None


def test_learning_late_is_learning_the_same() -> None:
    asked, rng = LinearCostModel(), random.Random(2)
    late = LinearCostModel()
    for _ in range(45):
        step = rng.randint(1, 600), rng.randint(1, 16), rng.randint(1, 20000)
        seconds = true_cost(*step) * rng.uniform(0.9, 1.1)
        asked.observe(*step, seconds)
        late.observe(*step, seconds)
        asked.estimate(*step)
    assert asked.margin == late.margin > 1.0
    assert asked.estimate(9, 3, 700) == late.estimate(9, 3, 700)
    assert asked.chunk_limit(3, 700, 0.1) == late.chunk_limit(3, 700, 0.1)


def test_an_objective_beyond_all_measure_bounds_nothing() -> None:
    assert trained().chunk_limit(8, 4000, 1e308) is None


@pytest.mark.parametrize("step", [(1, 1, 10), (256, 4, 1000), (600, 16, 20000)])
def test_learns_a_linear_cost(step: tuple[int, int, int]) -> None:
    assert trained().estimate(*step) == pytest.approx(true_cost(*step), rel=1e-3)


def test_follows_a_machine_that_became_slower() -> None:
    model = trained(300, per_token=8e-4, model=trained())
    assert model.estimate(256, 4, 1000) == pytest.approx(true_cost(256, 4, 1000, 8e-4), rel=0.02)


def test_chunk_limit_is_the_largest_that_keeps_the_objective() -> None:
    model = trained()
    limit = model.chunk_limit(8, 4000, 0.05)
    assert limit is not None
    expected = (0.05 - true_cost(8, 9, 4000)) / 2e-4
    assert limit == pytest.approx(expected, abs=1)


def test_chunk_limit_never_stops_a_prompt() -> None:
    assert trained().chunk_limit(8, 4000, 1e-6) == 16


def test_identical_steps_for_a_long_time_keep_the_numbers_finite() -> None:
    model = trained()
    for _ in range(20_000):
        model.observe(8, 8, 4000, true_cost(8, 8, 4000))
    assert model.estimate(8, 8, 4000) == pytest.approx(true_cost(8, 8, 4000), rel=1e-6)
    model = trained(60, model=model)
    assert model.estimate(256, 4, 1000) == pytest.approx(true_cost(256, 4, 1000), rel=0.05)


def test_cost_that_does_not_depend_on_tokens_sets_no_limit() -> None:
    model, rng = LinearCostModel(), random.Random(2)
    for _ in range(50):
        tokens = rng.randint(1, 600)
        model.observe(tokens, 2, 100, 0.5 - 1e-4 * tokens)
    assert model.chunk_limit(2, 100, 1.0) is None


def test_without_scatter_there_is_no_margin() -> None:
    model = LinearCostModel()
    for tokens in (1, 50, 100, 200, 300) * 20:
        model.observe(tokens, 1, tokens, 1e-3 * tokens)
    assert model.margin == 1.0


def test_one_step_in_ten_exceeds_the_margin() -> None:
    model, rng = LinearCostModel(), random.Random(2)
    exceeded, steps = 0, 4000
    for step in range(steps + 200):
        tokens = rng.randint(1, 300)
        seconds = (0.05 + 1e-3 * tokens) * rng.choice([0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3])
        expected = model.estimate(tokens, 1, tokens)
        if step >= 200:
            assert expected is not None
            exceeded += seconds > expected * model.margin
        model.observe(tokens, 1, tokens, seconds)
    assert 0.06 < exceeded / steps < 0.16
    assert 1.0 < model.margin < 1.5


def test_the_margin_makes_chunks_smaller_but_has_a_limit() -> None:
    model, rng = LinearCostModel(), random.Random(3)
    for _ in range(300):
        tokens = rng.randint(1, 300)
        model.observe(tokens, 1, tokens, 1e-3 * tokens * rng.choice([0.1, 5.0]))
    assert model.margin == pytest.approx(2.0, abs=0.3)
    limit, estimate = model.chunk_limit(1, 100, 0.5), model.estimate(1, 2, 100)
    assert limit is not None
    assert estimate is not None
    per_token = (model.estimate(101, 2, 100) - estimate) / 100  # type: ignore[operator]
    assert limit == int((0.5 / model.margin - estimate) / per_token)
