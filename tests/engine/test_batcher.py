import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.batcher import BatchBuilder, build_batch
from slipstream.engine.plan import PlanRow, RowSampling, StepPlan
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast

SAMPLING = RowSampling(SamplingParams(), seed=1, num_prompt_tokens=3, stop_token_ids=())


def row(name: str, tokens: tuple[int, ...], start: int, blocks: tuple[int, ...], num_logits: int = 1) -> PlanRow:
    return PlanRow(name, tokens, start, blocks, 0, num_logits, num_logits > 0, SAMPLING)


def test_mixed_rows_exact_arrays():
    plan = StepPlan(1, (row("prefill", (5, 6, 7), 2, (4, 1), 0), row("decode", (9,), 4, (0, 2), 1)))
    batch = build_batch(plan, block_size=4)
    assert batch.token_ids.tolist() == [5, 6, 7, 9]
    assert batch.positions.tolist() == [2, 3, 4, 4]
    assert batch.slots.tolist() == [4 * 4 + 2, 4 * 4 + 3, 1 * 4 + 0, 2 * 4 + 0]
    assert batch.query_start.tolist() == [0, 3, 4]
    assert batch.kv_len.tolist() == [5, 5]
    assert batch.block_table.tolist() == [[4, 1], [0, 2]]
    assert batch.logits_rows.tolist() == [3]
    assert {array.dtype for array in (batch.token_ids, batch.slots, batch.kv_len, batch.block_table)} == {
        np.dtype(np.int32)
    }


def test_block_table_is_padded_with_minus_one():
    plan = StepPlan(1, (row("long", (1,), 8, (3, 4, 5)), row("short", (1,), 0, (7,))))
    assert build_batch(plan, 4).block_table.tolist() == [[3, 4, 5], [7, -1, -1]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row("r", (), 0, (1,), 0), "feeds no token"),
        (row("r", (1,), 4, (1,)), "owns 1 blocks"),
        (row("r", (1,), 0, (1,), 2), "wants 2 logits of 1"),
    ],
)
def test_scheduler_defects_are_refused(bad: PlanRow, message: str):
    with pytest.raises(ValueError, match=message):
        build_batch(StepPlan(1, (bad,)), 4)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_few_tokens_are_laid_out_as_many_are(shapes: list[tuple[int, int, int]], block_size: int):
    rows = []
    for index, (length, start, wanted) in enumerate(shapes):
        blocks = tuple(range(7 * index, 7 * index - (-(start + length) // block_size)))
        rows.append(row(str(index), tuple(range(length)), start, blocks, min(wanted, length)))
    few, many = BatchBuilder(block_size)._few(rows), BatchBuilder(block_size)._ragged(rows)
    assert few is not None
    for name in ("token_ids", "positions", "slots", "query_start", "kv_len", "block_table", "logits_rows"):
        one, other = getattr(few, name), getattr(many, name)
        assert one.dtype == other.dtype == np.int32
        assert one.tolist() == other.tolist()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_every_slot_is_the_token_s_own_block(shapes: list[tuple[int, int, int]], block_size: int):
    next_block, rows = 0, []
    for index, (length, start, wanted) in enumerate(shapes):
        count = -(-(start + length) // block_size)
        blocks = tuple(range(next_block + count - 1, next_block - 1, -1))
        next_block += count
        rows.append(row(str(index), tuple(range(length)), start, blocks, min(wanted, length)))
    batch = build_batch(StepPlan(1, tuple(rows)), block_size)
    assert len(set(batch.slots.tolist())) == batch.num_tokens
    for index, plan_row in enumerate(rows):
        first, last = batch.query_start[index], batch.query_start[index + 1]
        for offset, slot in enumerate(batch.slots[first:last].tolist()):
            position = plan_row.start + offset
            assert slot == plan_row.blocks[position // block_size] * block_size + position % block_size
        wanted = [r for r in batch.logits_rows.tolist() if first <= r < last]
        assert wanted == list(range(last - plan_row.num_logits, last))
