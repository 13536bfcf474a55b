"""What a summary says about a level whose every time is known."""

from __future__ import annotations

from array import array

import pytest

from slipstream.bench.compare import serve_samples
from slipstream.bench.knee import find_knee
from slipstream.bench.loadgen import LevelRun, Load, Sample
from slipstream.bench.measure import SLICES, meets_alone, meets_slo, summarise_level
from slipstream.bench.record import Level, RequestRecord
from slipstream.bench.slo import parse_slo
from slipstream.bench.stream import StreamedAnswer, Usage
from slipstream.bench.table import level_notes
from slipstream.bench.workload import Item

pytestmark = pytest.mark.fast

START = 1000.0


def sample(index: int, due: float, times: list[float], *, error: str | None = None, counts=(), usage=None, **more):
    answer = StreamedAnswer()
    answer.times = array("d", [START + time for time in times])
    answer.counts = array("l", counts)
    answer.usage = usage
    ended = START + (times[-1] if times else due)
    measured = more.pop("measured", 0 <= due < 20)
    item = Item("short", "words", more.pop("asked", len(times)))
    at = START + due
    return Sample(index, item, at, at + more.pop("late", 0.0), answer, measured, ended, error)


def level(*samples: Sample, kind: str = "concurrency", value: float = 1.0, slo: str | None = None) -> Level:
    run = LevelRun(
        Load(kind, value, 20.0), START, START + 20.0, list(samples), array("d", [0.001, 0.002]), 4.0, 20.0, 0.5, 100
    )
    return summarise_level(run, parse_slo(slo) if slo else (), None)


def test_times_of_one_request() -> None:
    found = level(sample(0, 2.0, [2.5, 2.6, 2.9], late=0.1))
    [record] = found.records
    assert (record.started, record.late, record.ttft, record.e2e) == (2.0, 0.1, 0.5, 0.9)
    assert record.gaps == (0.1, 0.3)
    assert record.tpot == pytest.approx(0.2)
    assert found.summary.overhead.cpu_share == 0.2
    assert found.summary.overhead.per_read == 0.005
    assert found.summary.overhead.lag_p50 == 0.001
    assert found.summary.overhead.late_max == 0.1


def test_throughput_counts_what_arrived_in_the_window() -> None:
    """Of a warm-up request the tokens within, of a last one those before the end; of a failed one none."""
    found = level(
        sample(0, -1.0, [-0.5, 0.5, 1.5]),
        sample(1, 19.0, [19.5, 20.5]),
        sample(2, 3.0, [3.1, 3.2], error="disconnect"),
    )
    assert sum(found.tokens_by_slice) == 3
    assert found.tokens_by_slice[:2] == (1.0, 1.0)
    assert found.tokens_by_slice[19] == 1.0
    assert found.summary.output_tokens_per_s.value == pytest.approx(3 / 20)
    assert (found.summary.requests, found.summary.succeeded, found.summary.errors) == (2, 1, {"disconnect": 1})
    assert found.summary.requests_per_s == 1 / 20
    assert len(found.tokens_by_slice) == SLICES


def test_tokens_of_chunks_come_from_running_counts_else_are_spread() -> None:
    counted = level(sample(0, 0.0, [0.5, 1.5], counts=(3, 1), usage=Usage(7, 4), asked=4))
    assert counted.tokens_by_slice[:2] == (3.0, 1.0)
    assert counted.records[0].chunk_tokens == (3, 1)
    assert counted.records[0].tpot == 1.0
    spread = level(sample(0, 0.0, [0.5, 1.5], usage=Usage(7, 4), asked=5))
    assert spread.tokens_by_slice[:2] == (2.0, 2.0)
    assert spread.records[0].output_tokens == 4
    assert spread.summary.short_answers == 1
    assert spread.summary.tokens.tokens_per_chunk == 2.0
    assert spread.summary.prompt_tokens_per_s == 7 / 20


def test_one_chunk_has_no_time_per_token() -> None:
    assert RequestRecord(0, 0.0, ttft=1.0, output_tokens=5, gaps=()).tpot is None
    assert RequestRecord(0, 0.0, output_tokens=3, gaps=(1.0,), chunk_tokens=(3,)).tpot is None
    assert "tpot" not in level(sample(0, 0.0, [1.0])).summary.latency


def test_running_requests_at_the_end_of_each_slice() -> None:
    found = level(sample(0, 0.5, [2.5]), sample(1, 1.5, [1.75]), sample(2, 19.5, [30.0]))
    assert found.running_by_slice[:4] == (1, 1, 0, 0)
    assert found.running_by_slice[19] == 1


@pytest.mark.parametrize(
    ("objective", "met"),
    [
        ("ttft_p50=0.5", True),
        ("ttft_p50=0.4", False),
        ("itl_p50=0.1", True),
        ("itl_p99=0.2", False),
        ("e2e_p99=0.9", True),
    ],
)
def test_one_request_against_an_objective(objective: str, met: bool) -> None:
    record = RequestRecord(0, 0.0, ttft=0.5, e2e=0.9, gaps=(0.1, 0.3), output_tokens=3)
    assert meets_alone(record, parse_slo(objective)[0]) is met
    failed = RequestRecord(0, 0.0, error="timeout")
    assert not meets_alone(failed, parse_slo(objective)[0])


def test_failures_are_infinitely_slow() -> None:
    fast = [RequestRecord(n, 0.0, ttft=0.1, e2e=0.1, output_tokens=1) for n in range(99)]
    failed = RequestRecord(99, 0.0, error="http 429")
    assert meets_slo([*fast, failed], parse_slo("ttft_p99=1"))
    assert not meets_slo([*fast, failed, failed], parse_slo("ttft_p99=1"))
    assert not meets_slo([], parse_slo("ttft_p50=1"))


def test_goodput_counts_requests_that_met_every_objective() -> None:
    samples = [sample(n, float(n), [n + 0.1 * (n + 1), n + 0.1 * (n + 1) + 0.05]) for n in range(10)]
    found = level(*samples, slo="ttft_p50=0.55,tpot_p99=1")
    assert found.summary.goodput == 5 / 20
    assert found.summary.meets_slo is True
    assert level(*samples, slo="ttft_p90=0.55").summary.meets_slo is False


def rated(
    value: float, rate: float, *, kind: str = "concurrency", failed: int = 0, slo: bool | None = None, backlog=(1, 1)
):
    """A level with so many output tokens per second, of 200 requests."""
    import msgspec

    base = level(sample(0, 0.0, [0.5]), kind=kind, value=value)
    summary = msgspec.structs.replace(
        base.summary,
        requests=200,
        succeeded=200 - failed,
        errors={"http 429": failed} if failed else {},
        output_tokens_per_s=msgspec.structs.replace(base.summary.output_tokens_per_s, value=rate),
        meets_slo=slo,
    )
    return msgspec.structs.replace(base, summary=summary, running_by_slice=backlog)


def test_the_knee_is_where_doubling_stops_paying() -> None:
    levels = [rated(1, 100), rated(2, 190), rated(4, 300), rated(8, 340), rated(16, 350), rated(32, 700)]
    knee = find_knee(levels)
    assert (knee.knee, knee.limit) == (8, 6)
    assert "+3% only, from 340.0 to 350.0" in knee.why
    assert "20%" in knee.rule


def test_a_step_smaller_than_a_doubling_has_to_bring_less() -> None:
    assert find_knee([rated(4, 100), rated(5, 104)]).knee == 5
    assert find_knee([rated(4, 100), rated(8, 104)]).knee == 4


def test_failures_and_missed_objectives_end_a_sweep() -> None:
    assert find_knee([rated(1, 100), rated(2, 200, failed=2), rated(4, 400, failed=3)]).knee == 2
    assert find_knee([rated(1, 100, slo=True), rated(2, 200, slo=False)]).knee == 1
    nothing = find_knee([rated(1, 100, slo=False)])
    assert (nothing.knee, nothing.limit) == (None, None)
    assert "Not even the first level" in nothing.why
    whole = find_knee([rated(1, 100), rated(2, 200)])
    assert whole.knee == 2
    assert whole.limit == 1
    assert "last level or above" in whole.why


@pytest.mark.parametrize(
    ("kind", "said"),
    [("concurrency", "no request began within the 20 s"), ("rate", "no request was due within the 20 s")],
)
def test_a_window_in_which_nothing_began_is_not_called_a_failure(kind: str, said: str) -> None:
    warming = sample(0, -1.0, [25.0], measured=False)
    found = level(warming, kind=kind)
    knee = find_knee([found])
    assert said in knee.why
    assert "--seconds" in knee.why
    assert "answered" not in knee.why
    [note] = level_notes(found)
    assert note.startswith("0 requests in 20.0 s: no request")
    assert serve_samples(found) == []


def test_an_open_loop_bends_where_requests_pile_up() -> None:
    knee = find_knee([rated(1, 9, kind="rate", backlog=(1, 2)), rated(2, 9, kind="rate", backlog=(5, 15)),
                      rated(4, 9, kind="rate", backlog=(5, 16))])  # fmt: skip
    assert (knee.knee, knee.limit) == (2, 1.6)
    assert "from 5 to 16" in knee.why
    assert find_knee([rated(1, 1, kind="trace")]).knee is None
    assert find_knee([]).knee is None
