"""Objectives, levels, lengths and addresses as they are written."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench.endpoint import Endpoint
from slipstream.bench.levels import parse_concurrency, parse_rates
from slipstream.bench.slo import METRICS, Objective, parse_slo
from slipstream.bench.steps import Step, parse_steps
from slipstream.bench.workload import LengthClass, parse_lengths
from slipstream.cli.bench_offline import parse_shapes
from slipstream.errors import UsageError

pytestmark = pytest.mark.fast


def test_objectives() -> None:
    assert parse_slo("ttft_p99=0.5, TPOT_p99.9=50ms,e2e_p50=3s") == (
        Objective("ttft", 0.99, 0.5),
        Objective("tpot", 0.9990000000000001, 0.05),
        Objective("e2e", 0.5, 3.0),
    )
    assert str(parse_slo("itl_p95=40ms")[0]) == "itl_p95=0.04s"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from(METRICS), min_size=1, unique=True),
    st.integers(1, 99),
    st.integers(1, 10**6),
)
def test_objectives_read_back(metrics: list[str], quantile: int, limit: int) -> None:
    found = parse_slo(",".join(f"{metric}_p{quantile}={limit}ms" for metric in metrics))
    again = parse_slo(",".join(map(str, found)))
    assert [each.metric for each in again] == [each.metric for each in found] == metrics
    assert [each.quantile for each in again] == [each.quantile for each in found] == [quantile / 100] * len(metrics)
    assert [each.limit for each in again] == pytest.approx([each.limit for each in found], rel=1e-5)
    assert found[0].limit == limit / 1000


@pytest.mark.parametrize(
    "text",
    ["", "ttft=1", "ttft_p99", "ttft_p99=0", "ttft_p0=1", "ttft_p100=1", "speed_p99=1", "ttft_p99=1,ttft_p50=1",
     "ttft_p99=-1", "ttft_p99=1m", "ttft_p99=nan", "ttft_p99=1,,e2e_p50=1"],
)  # fmt: skip
def test_bad_objectives_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo(text)


@settings(max_examples=100, deadline=None)
@given(st.text("tpft_e2itl9=0.5ms, \u0663", max_size=20))
def test_any_text_is_objectives_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_slo(text)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("1,2,4..64", (1, 2, 4, 8, 16, 32, 64)),
        ("3..20", (3, 6, 12, 20)),
        ("5..5", (5,)),
        (" 1 , 7 ", (1, 7)),
    ],
)
def test_concurrency(text: str, levels: tuple[int, ...]) -> None:
    assert parse_concurrency(text) == levels


@pytest.mark.parametrize("text", ["", "0", "2,1", "1,1", "8..4", "1..", "a", "-1", "1.5", "5000", "1,1..4", "\u0663"])
def test_bad_concurrency_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency"):
        parse_concurrency(text)


def test_rates() -> None:
    assert parse_rates("0.5,1,2.25") == (0.5, 1.0, 2.25)
    for text in ("", "0", "-1", "2,1", "nan", "inf", "1e3", "1,1"):
        with pytest.raises(UsageError, match="--rate"):
            parse_rates(text)


def test_lengths() -> None:
    assert parse_lengths("16-64:8, 128:16-32 ,5:1") == (
        LengthClass("short", (16, 64), (8, 8)),
        LengthClass("medium", (128, 128), (16, 32)),
        LengthClass("long", (5, 5), (1, 1)),
    )
    assert [each.name for each in parse_lengths("1:1,2:2")] == ["class 1", "class 2"]
    for text in ("", "16", "0:1", "1:0", "5-4:1", "1:5-4", "a:1", "1:1,", "1-2-3:4"):
        with pytest.raises(UsageError, match="--lengths"):
            parse_lengths(text)


def test_shapes_and_steps() -> None:
    assert [str(each) for each in parse_shapes("1x128:64, 8x16:4")] == [
        "batch 1, 128 + 64 tokens",
        "batch 8, 16 + 4 tokens",
    ]
    for text in ("", "1x1", "0x1:1", "1x0:1", "1x1:0", "ax1:1"):
        with pytest.raises(UsageError, match="--shapes"):
            parse_shapes(text)
    assert parse_steps("2x0,1x128", "512") == (
        Step("decode 2 at 0", 2, 0, 1),
        Step("decode 1 at 128", 1, 128, 1),
        Step("prefill 512", 1, 0, 512),
    )
    assert parse_steps("", "9") == (Step("prefill 9", 1, 0, 9),)
    for decode, prefill in (("", ""), ("0x1", ""), ("1", ""), ("", "8"), ("", "x"), ("", "-9")):
        with pytest.raises(UsageError):
            parse_steps(decode, prefill)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1/models"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1/models"),
        ("https://Example.com/llm/v1", "https://example.com/llm/v1/models"),
        ("http://[::1]:80/", "http://[::1]/v1/models"),
    ],
)
def test_addresses(url: str, target: str) -> None:
    assert Endpoint.parse(url).url("/v1/models") == target


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://x:a", "http://u:p@x", "http://x?y=1", "http://x#a",
     "http://x/a b", "http://x/\u00e4", "http://[::1"],
)  # fmt: skip
def test_bad_addresses_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint.parse(url)
