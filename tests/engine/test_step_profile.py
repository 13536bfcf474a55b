from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_engine import TinyEngine

from slipstream import SamplingParams
from slipstream.engine.plan import RowResult, StepPlan, StepResult
from slipstream.engine.step_profile import (
    BUDGET,
    CONTEXT,
    LONG_BUDGET,
    MOST_POSITIONS,
    ProfileSize,
    StepSeconds,
    load_or_measure,
    measure_steps,
    one_row,
    profile_key,
    relative_speed,
)
from slipstream.errors import EngineError

pytestmark = pytest.mark.fast

SIZE = ProfileSize(max_rows=4, max_tokens=6, block_size=16, num_blocks=200, max_model_len=2048, max_step_tokens=4096)


class Machine:
    """A clock, and a runner for which a step takes `seconds(rows, tokens)`."""

    def __init__(self, scale: float = 1e-3) -> None:
        self.now, self.scale, self.plans = 0.0, scale, list[StepPlan]()

    def clock(self) -> float:
        return self.now

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        context = sum(row.start for row in plan.rows)
        self.now += self.scale * (len(plan.rows) + plan.num_tokens + 1e-4 * context)
        return StepResult(plan.step, tuple(RowResult(row.request_id, (0,), 0) for row in plan.rows))


def measure(machine: Machine, size: ProfileSize = SIZE) -> StepSeconds:
    return measure_steps(machine, size, machine.clock)


def test_every_number_of_rows_and_tokens_is_measured_at_the_context() -> None:
    machine = Machine()
    measured = measure(machine)
    assert measured == {
        (rows, rows * tokens, context): pytest.approx(1e-3 * (rows + rows * tokens) + 1e-7 * rows * context)
        for context, numbers, lengths in ((CONTEXT, (1, 2, 4), (1, 2, 3, 4, 6)), (1024, (1, 2), (1, 6)))
        for rows in numbers
        for tokens in lengths
    }
    for plan in machine.plans:
        blocks = [block for row in plan.rows for block in row.blocks]
        assert len(set(blocks)) == len(blocks)
        assert max(blocks) < SIZE.num_blocks
        assert all(row.start == CONTEXT for row in plan.rows) or sum(r.start for r in plan.rows) <= MOST_POSITIONS


@pytest.mark.parametrize(("num_blocks", "rows", "context"), [(40, {1, 2}, 256), (4, {1, 2, 4}, 10), (2, {1, 2}, 10)])
def test_a_small_pool_has_shorter_contexts_and_then_fewer_rows(num_blocks: int, rows: set[int], context: int) -> None:
    machine = Machine()
    size = ProfileSize(
        max_rows=4, max_tokens=6, block_size=16, num_blocks=num_blocks, max_model_len=2048, max_step_tokens=4096
    )
    assert {r for r, _, _ in measure(machine, size)} >= rows
    for plan in machine.plans:
        assert max(block for row in plan.rows for block in row.blocks) < num_blocks
        assert all(len(row.blocks) * 16 >= row.start + len(row.tokens) for row in plan.rows)
    assert min(row.start for plan in machine.plans for row in plan.rows) <= context


def test_a_slow_machine_measures_one_row_only() -> None:
    machine = Machine(scale=1.0)
    assert {rows for rows, _, _ in measure(machine)} == {1}
    fast = Machine(scale=0.02)
    measure(fast)
    assert fast.now < 1.5 * (BUDGET + LONG_BUDGET)


def test_a_step_that_fails_is_no_measurement() -> None:
    class Broken(Machine):
        def execute(self, plan: StepPlan) -> StepResult:
            return StepResult(plan.step, tuple(RowResult(row.request_id, (), 0, error="NaN") for row in plan.rows))

    with pytest.raises(EngineError, match="the model cannot compute a step: NaN"):
        measure(Broken())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_real_model_is_measured_and_answers_as_before(backend: str) -> None:
    prompt = [(1, 2, 3, 1, 2)]
    untouched, measured = TinyEngine(backend=backend), TinyEngine(backend=backend)
    size = ProfileSize(max_rows=3, max_tokens=4, block_size=4, num_blocks=200, max_model_len=120, max_step_tokens=256)
    assert set(measure_steps(measured.runner, size)) >= {(1, 1, 116), (1, 4, 116), (2, 8, 116)}
    params = SamplingParams(temperature=0.0, max_tokens=20)
    assert measured.answer([(prompt[0], params)]) == untouched.answer([(prompt[0], params)])


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    facts = {"model": "a", "threads": 2}
    made: list[int] = []

    def measure() -> StepSeconds:
        made.append(1)
        return {(1, 1, 9): 0.5, (1, 2, 9): 0.625}

    assert load_or_measure(tmp_path / "new", facts, measure) == ({(1, 1, 9): 0.5, (1, 2, 9): 0.625}, "measured")
    assert load_or_measure(tmp_path / "new", facts, measure) == ({(1, 1, 9): 0.5, (1, 2, 9): 0.625}, "measured earlier")
    assert load_or_measure(tmp_path / "new", facts | {"threads": 1}, measure)[1] == "measured"
    assert load_or_measure(None, facts, measure)[1] == "measured"
    assert len(made) == 3
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"seconds": []}',
        b'{"seconds": [[1, 1, 0]]}',
        b'{"seconds": [[2, 1, 0, 0.5]]}',
        b'{"seconds": [[1, 1, 0, -0.5]]}',
        b'{"seconds": [[1, 1, 0, NaN]]}',
        b'{"seconds": [[1, 1, -1, 0.5]]}',
        b'{"seconds": [[1, 1, 0.5]]}',
        b'{"seconds": 5}',
        b'{"seconds": [[1e999, 1, 0, 0.5]]}',
        b'{"seconds": [[2, 2, 0, 0.5]]}',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_broken_file_is_measured_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"{profile_key({})}.json"
    path.write_bytes(content)
    assert load_or_measure(tmp_path, {}, lambda: {(1, 1, 0): 0.25}) == ({(1, 1, 0): 0.25}, "measured")
    assert json.loads(path.read_text())["seconds"] == [[1, 1, 0, 0.25]]


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert load_or_measure(blocked, {}, lambda: {(1, 1, 0): 0.25}) == ({(1, 1, 0): 0.25}, "measured")


@pytest.mark.parametrize(
    ("changed", "lengths"),
    [
        ({"max_step_tokens": 3}, {(1, 1), (1, 2), (1, 3)}),
        ({"max_step_tokens": 6}, {(1, 1), (1, 2), (1, 3), (1, 4), (1, 6)}),
        ({"max_model_len": 2}, {(rows, rows * n) for rows in (1, 2, 4) for n in (1, 2)}),
        ({"num_blocks": 1, "block_size": 2}, {(1, 1), (1, 2)}),
    ],
)
def test_nothing_is_fed_that_could_not_be(changed: dict[str, int], lengths: set[tuple[int, int]]) -> None:
    machine, size = Machine(), replace(SIZE, **changed)
    assert {at[:2] for at in measure(machine, size)} == lengths
    for plan in machine.plans:
        assert plan.num_tokens <= size.max_step_tokens
        assert all(row.start + len(row.tokens) <= size.max_model_len for row in plan.rows)
        assert max(block for row in plan.rows for block in row.blocks) < size.num_blocks


def test_long_contexts_are_measured_where_there_is_room_and_time() -> None:
    def contexts(machine: Machine, size: ProfileSize) -> set[tuple[int, int]]:
        return {(rows, context) for rows, _, context in measure(machine, size) if context > CONTEXT}

    large = replace(SIZE, max_rows=32, num_blocks=4000, max_model_len=8192)
    assert contexts(Machine(), large) == {(1, 1024), (4, 1024), (1, 4096)}
    assert contexts(Machine(), replace(large, max_rows=3)) == {(1, 1024), (2, 1024), (1, 4096)}
    assert contexts(Machine(), replace(large, max_model_len=4096)) == {(1, 1024), (4, 1024)}
    assert contexts(Machine(), replace(large, max_model_len=1024)) == set()
    slow = Machine(scale=0.02)
    assert len(contexts(slow, large)) < 3


def test_a_machine_that_was_busy_is_measured_anew(tmp_path: Path) -> None:
    busy, free = Machine(2e-3), Machine(1e-3)
    known = measure(busy)
    assert relative_speed(free, SIZE, known, free.clock) == pytest.approx(0.5)
    assert relative_speed(busy, SIZE, known, busy.clock) == pytest.approx(1.0)
    assert relative_speed(free, SIZE, {}, free.clock) == 1.0
    found = [
        load_or_measure(
            tmp_path,
            {},
            lambda machine=machine: measure(machine),
            lambda known, machine=machine: relative_speed(machine, SIZE, known, machine.clock),
        )
        for machine in (busy, busy, free, free, busy)
    ]
    assert [source for _, source in found] == [
        "measured",
        *["measured earlier"] * 1,
        "measured",
        *["measured earlier"] * 2,
    ]
    assert found[4][0] == found[2][0]
    assert found[2][0] != found[0][0]


def test_both_ends_must_have_become_faster() -> None:
    machine = Machine()
    known = measure(machine)
    context = SIZE.context(1)
    known[1, 1, context] *= 4.0
    assert relative_speed(machine, SIZE, known, machine.clock) == pytest.approx(1.0)


def test_a_drafter_is_measured_behind_steps_of_its_target() -> None:
    machine, target = Machine(), Machine(1e-1)
    before = one_row(target, SIZE)
    assert measure_steps(machine, SIZE, machine.clock, before) == measure(Machine())
    assert len(target.plans) == len(machine.plans) - 1 - 3 - 2  # none before what is not counted
    assert {(len(plan.rows), plan.num_tokens) for plan in target.plans} == {(1, 1)}
    plans = len(target.plans)
    assert relative_speed(machine, SIZE, measure(Machine()), machine.clock, before) == pytest.approx(1.0)
    assert len(target.plans) == plans + 8
