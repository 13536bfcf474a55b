"""Counters, readings and histograms: what they hold and what Prometheus gets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.metrics.instruments import OWN, Counter, Histogram, Reading

pytestmark = pytest.mark.fast

COMMON = {"model_name": "m"}


def samples(instrument: Counter | Histogram | Reading) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in instrument.families(COMMON)
        for sample in family.samples
    }


def test_a_counter_is_exported_under_both_names() -> None:
    counter = Counter("things", "Things.")
    assert samples(counter) == {
        ("vllm:things_total", (("model_name", "m"),)): 0.0,
        ("slipstream:things_total", (("model_name", "m"),)): 0.0,
    }
    counter.inc()
    counter.inc(by=2.5)
    assert counter.value() == 3.5
    assert set(samples(counter).values()) == {3.5}


def test_labelled_values_are_counted_apart() -> None:
    counter = Counter("things", "Things.", ["colour"], prefixes=OWN)
    assert samples(counter) == {}
    counter.inc("red")
    counter.inc("blue", by=2)
    counter.inc("red")
    assert samples(counter) == {
        ("slipstream:things_total", (("model_name", "m"), ("colour", "red"))): 2.0,
        ("slipstream:things_total", (("model_name", "m"), ("colour", "blue"))): 2.0,
    }
    assert counter.value("green") == 0.0


@pytest.mark.parametrize(("counter", "name", "kind"), [(False, "vllm:n", "gauge"), (True, "vllm:n_total", "counter")])
def test_a_reading(counter: bool, name: str, kind: str) -> None:
    reading = Reading("n", "N.", 7, counter=counter)
    assert {family.type for family in reading.families(COMMON)} == {kind}
    assert samples(reading)[name, (("model_name", "m"),)] == 7.0


def test_a_value_belongs_to_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram("t", "T.", (0.1, 0.5, 1), prefixes=OWN)
    for value in (0.05, 0.1, 0.100001, 0.7, 5.0):
        histogram.observe(value)
    buckets = {
        dict(labels)["le"]: value for (name, labels), value in samples(histogram).items() if name.endswith("_bucket")
    }
    assert buckets == {"0.1": 2.0, "0.5": 3.0, "1.0": 4.0, "+Inf": 5.0}
    assert histogram.count() == 5
    assert histogram.sum() == pytest.approx(5.950001)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 100, allow_nan=False), max_size=30))
def test_buckets_agree_with_counting(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.0, 50.0)
    histogram = Histogram("t", "T.", bounds, ["route"], prefixes=OWN)
    for value in values:
        histogram.observe(value, "/x")
    found = samples(histogram)
    for bound in bounds if values else ():
        key = ("slipstream:t_bucket", (("model_name", "m"), ("route", "/x"), ("le", str(bound))))
        assert found[key] == sum(value <= bound for value in values)
    assert histogram.count("/x") == len(values)
    assert math.isclose(histogram.sum("/x"), math.fsum(values), abs_tol=1e-9)


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1)])
def test_bounds_must_ascend(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        Histogram("t", "T.", bounds)
