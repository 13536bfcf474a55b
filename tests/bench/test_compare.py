from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats as scipy_stats

from slipstream.bench.compare import Samples, compare_rounds, compare_samples, judge
from slipstream.bench.offline import FORMAT as OFFLINE_FORMAT
from slipstream.bench.offline import Case, OfflineResult
from slipstream.bench.results import compare_results, read_result, read_results
from slipstream.errors import UsageError

pytestmark = pytest.mark.fast


def samples(values, *, metric: str = "TTFT", higher: bool = False, paired: bool = True) -> Samples:
    return Samples(metric, higher, paired, {number: float(value) for number, value in enumerate(values)})


@pytest.mark.parametrize(
    ("low", "ratio", "high", "higher", "verdict"),
    [
        (0.7, 0.8, 0.9, False, "better"),
        (0.7, 0.8, 0.9, True, "worse"),
        (1.1, 1.2, 1.3, True, "better"),
        (1.1, 1.2, 1.3, False, "worse"),
        (0.9, 1.2, 1.3, True, "within noise"),
        (1.0, 1.2, 1.3, True, "within noise"),
        (1.01, 1.015, 1.02, True, "within noise"),
    ],
)
def test_the_rule(low: float, ratio: float, high: float, higher: bool, verdict: str) -> None:
    assert judge(ratio, low, high, higher, 0.02)[0] == verdict


@pytest.mark.parametrize(
    ("low", "ratio", "high", "verdict"),
    [
        (1.05, 1.09, 1.12, "within noise"),
        (1.09, 1.5, 2.0, "within noise"),
        (1.12, 1.15, 1.2, "better"),
        (0.88, 0.9, 0.95, "within noise"),
        (0.85, 0.88, 0.89, "worse"),
    ],
)
def test_drift_between_single_runs_is_allowed_for(low: float, ratio: float, high: float, verdict: str) -> None:
    found, why = judge(ratio, low, high, True, 0.02, 0.1)
    assert found == verdict
    assert ("10.0% of drift" in why) == (verdict == "within noise")


def test_one_run_of_each_does_not_tell_small_changes_from_drift(tmp_path: Path) -> None:
    runs = [offline([10, 10, 10]), offline([10.7, 10.7, 10.7])]
    assert {each.verdict for each in compare_results(runs[:1], runs[1:])[0]} == {"within noise"}
    assert {each.verdict for each in compare_results(runs[:1], runs[1:], drift=0.05)[0]} == {"better"}
    assert {each.verdict for each in compare_results(runs[:1] * 3, runs[1:] * 3)[0]} == {"better"}


def test_pairing_sees_what_the_lengths_hide() -> None:
    """Requests differ by a factor of 30, B is 5 % slower for each."""
    a = np.random.default_rng(0).uniform(1, 30, 60)
    found = compare_samples("level", samples(a), samples(1.05 * a))
    assert found.verdict == "worse"
    assert (found.ratio, found.low, found.high) == pytest.approx((1.05, 1.05, 1.05))
    apart = compare_samples("level", samples(a, paired=False), samples(1.05 * a, paired=False))
    assert apart.verdict == "within noise"


def test_only_requests_that_both_answered_are_paired() -> None:
    a = Samples("TTFT", False, True, dict.fromkeys(range(20), 1.0))
    b = Samples("TTFT", False, True, {n: 1.0 if n < 10 else 100.0 for n in (*range(10), *range(30, 40))})
    found = compare_samples("level", a, b)
    assert (found.pairs, found.ratio, found.verdict) == (10, 1.0, "within noise")


def test_equal_runs_are_within_noise() -> None:
    rng = np.random.default_rng(5)
    verdicts = [
        compare_samples("x", samples(rng.normal(10, 1, 50)), samples(rng.normal(10, 1, 50)), seed=n).verdict
        for n in range(40)
    ]
    assert verdicts.count("within noise") >= 34


def test_too_few_pairs_say_nothing() -> None:
    found = compare_samples("x", samples([1.0] * 7), samples([9.0] * 7))
    assert (found.verdict, found.ratio) == ("within noise", 9.0)
    assert "7 pairs, of which 8" in found.why
    assert "2 pairs, of which 3" in compare_rounds("x", samples([1, 1]), samples([2, 2])).why
    of_nothing = compare_samples("x", samples([0.0] * 9), samples([1.0] * 9))
    assert (of_nothing.why, of_nothing.ratio) == ("a value is zero", None)


def test_rounds_are_compared_by_students_t_on_logarithms() -> None:
    a, b = np.array([10.0, 11.0, 12.0, 9.0]), np.array([13.0, 13.5, 15.0, 12.5])
    found = compare_rounds("x", samples(a, higher=True), samples(b, higher=True))
    logs = np.log(b / a)
    half = scipy_stats.t.ppf(0.975, 3) * logs.std(ddof=1) / 2
    wanted = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    assert (found.ratio, found.low, found.high) == pytest.approx(tuple(wanted), rel=1e-4)
    assert found.verdict == "better"


def offline(rates: list[float], *, kind="throughput", date: str = "2026-01-01", case: str = "32 requests", model="m"):
    rounds = {"output tokens/s": tuple(rates), "seconds": tuple(100 / rate for rate in rates)}
    return OfflineResult(
        OFFLINE_FORMAT, kind, "n", date, model, "0", {"processor": "p"}, {}, {}, (Case(case, rounds, {}),), 1
    )


def test_offline_results() -> None:
    found, doubts = compare_results([offline([10, 11, 10.5])], [offline([20, 22, 21])])
    assert [(each.metric, each.verdict) for each in found] == [("output tokens/s", "better"), ("seconds", "better")]
    assert found[0].ratio == pytest.approx(2.0)
    assert doubts == []
    assert compare_results([offline([1, 1, 1])], [offline([1, 1, 1], model="other")])[1] == [
        "not the same model: m and other"
    ]


def test_runs_are_paired_in_the_order_of_time(tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.2)):
        (tmp_path / side).mkdir()
        for number, drift in enumerate([100.0, 150.0, 80.0]):
            rate = drift * factor
            data = msgspec.json.encode(offline([rate, 1.1 * rate, 0.9 * rate], date=f"2026-01-0{number + 1}"))
            (tmp_path / side / f"{9 - number}.json").write_bytes(data)
    found, _ = compare_results(read_results(tmp_path / "a"), read_results(tmp_path / "b"))
    assert (found[0].pairs, found[0].verdict) == (3, "better")
    assert (found[0].ratio, found[0].low, found[0].high) == pytest.approx((1.2, 1.2, 1.2))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="bench latency and bench throughput cannot"):
        compare_results([offline([1, 2, 3])], [offline([1, 2, 3], kind="latency")])
    with pytest.raises(UsageError, match="1 runs and 2"):
        compare_results([offline([1, 2, 3])], [offline([1, 2, 3])] * 2)
    with pytest.raises(UsageError, match="no level in common"):
        compare_results([offline([1, 2, 3])], [offline([1, 2, 3], case="other")])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is no result"),
        ("{}", "missing required field `format`"),
        ('{"format": "other/1"}', "format 'other/1'"),
        ('{"format": "slipstream-bench-serve/1"}', "missing required field"),
        ("[1]", "is no result"),
        ("\udcff", "is no result"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=match):
        read_result(path)


def test_places_without_results(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_result(tmp_path / "none")
    with pytest.raises(UsageError, match=r"no \.json"):
        read_results(tmp_path)
