from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.spec.step_tables import StepTable, StepTables
from slipstream.spec.step_times import StepTimes

pytestmark = pytest.mark.fast

LINE = {(rows, rows + n, 64): 1.0 + 0.1 * rows + 0.2 * n for rows in (1, 2) for n in range(9)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=12))
def test_least_is_the_least_slope_of_what_follows(seconds: list[float]) -> None:
    table = StepTable.of(seconds)
    for n, least in enumerate(table.least[:-1]):
        slopes = [(seconds[m] - seconds[n]) / (m - n) for m in range(n + 1, len(seconds))]
        assert least == pytest.approx(min(slopes), abs=1e-12)
    assert table.least[-1] == float("inf")


def test_a_table_holds_the_times_of_its_rows() -> None:
    times = StepTimes(LINE)
    times.observe_plain(1.1, 100.0)
    table = StepTables(times, longest=3, margin=0.0).at(2, 64)
    assert table.seconds == tuple(times.measured(2, 2 + n) for n in range(7))


def test_contexts_close_to_one_another_share_a_table() -> None:
    tables = StepTables(StepTimes(LINE | {(1, 1, 128): 9.0}), longest=1, margin=0.0)
    assert tables.at(1, 100) is tables.at(1, 111)
    assert tables.at(1, 100) is not tables.at(1, 112)
    assert tables.at(1, 100).seconds[0] < tables.at(1, 112).seconds[0]


@pytest.mark.parametrize(("margin", "could_pay"), [(0.0, 3), (1.58, 3), (1.59, 0), (9.0, 0)])
def test_could_pay_is_about_one_row_whose_tokens_are_all_right(margin: float, could_pay: int) -> None:
    """1.1 seconds for one token, 1.7 for four: 2.59 times the rate."""
    assert StepTables(StepTimes(LINE), longest=3, margin=margin).at(1, 64).could_pay == could_pay


def test_tokens_that_cost_a_step_each_cannot_pay() -> None:
    assert StepTables(StepTimes({(1, n, 0): float(n) for n in range(1, 9)}), 5, 0.0).at(1, 0).could_pay == 0


def test_drafting_is_part_of_the_step_and_done_for_all_asked_rows_together() -> None:
    def cost(rows: int, tokens: int) -> float:
        assert rows == 2
        return 0.5 * tokens

    tables = StepTables(StepTimes(LINE), longest=2, margin=0.0)
    plain, costly = tables.at(2, 64), tables.at(2, 64, asked=2, cost=cost)
    assert [a - b for a, b in zip(costly.seconds, plain.seconds, strict=True)] == pytest.approx([0, 0.5, 0.5, 1.0, 1.0])
    assert costly.could_pay == 2
    assert tables.at(2, 64, asked=2, cost=lambda rows, tokens: 9.0).could_pay == 0


def test_only_the_last_used_tables_are_kept() -> None:
    tables = StepTables(StepTimes(LINE), longest=1, margin=0.0)
    first = tables.at(1, 0)
    for rows in range(2, 70):
        assert tables.at(1, 0) is first
        tables.at(rows, 0)
    for rows in range(100, 170):
        tables.at(rows, 0)
    assert tables.at(1, 0) is not first
