"""Counters, gauges and histograms that one event loop writes: an update is a few Python operations, with no lock.

`prometheus_client` does the exposition; its own instruments take a lock per update and hold one name each, and here
every number is exported under two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Literal

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Prefix = Literal["vllm", "slipstream"]
BOTH: tuple[Prefix, ...] = ("vllm", "slipstream")
OWN: tuple[Prefix, ...] = ("slipstream",)


class Counter:
    """A sum that only grows. `name` has neither prefix nor `_total`; `labels` name what `inc` is given, in order."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), prefixes: tuple[Prefix, ...] = BOTH):
        self.name, self.help, self.labels, self.prefixes = name, help_text, tuple(labels), prefixes
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def inc(self, *values: str, by: float = 1.0) -> None:
        self._values[values] = self._values.get(values, 0.0) + by

    def value(self, *values: str) -> float:
        return self._values.get(values, 0.0)

    def families(self, common: dict[str, str]) -> Iterator[Metric]:
        for prefix in self.prefixes:
            family = CounterMetricFamily(f"{prefix}:{self.name}", self.help, labels=[*common, *self.labels])
            for values, total in self._values.items():
                family.add_metric([*common.values(), *values], total)
            yield family


class Reading:
    """A number that somebody else keeps, as it is now: a gauge, or a counter that others count."""

    def __init__(
        self,
        name: str,
        help_text: str,
        value: float,
        *,
        counter: bool = False,
        prefixes: tuple[Prefix, ...] = BOTH,
    ):
        self.name, self.help, self.prefixes = name, help_text, prefixes
        self._value, self._counter = float(value), counter

    def families(self, common: dict[str, str]) -> Iterator[Metric]:
        kind = CounterMetricFamily if self._counter else GaugeMetricFamily
        for prefix in self.prefixes:
            family = kind(f"{prefix}:{self.name}", self.help, labels=list(common))
            family.add_metric(list(common.values()), self._value)
            yield family


class Histogram:
    """Counts per bucket and their sum. `bounds` ascend; a value belongs to the first bound that it does not exceed."""

    def __init__(
        self,
        name: str,
        help_text: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        prefixes: tuple[Prefix, ...] = BOTH,
    ):
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of {name} do not ascend")
        self.name, self.help, self.labels, self.prefixes = name, help_text, tuple(labels), prefixes
        self._bounds = tuple(float(bound) for bound in bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {} if labels else {(): [0] * (len(bounds) + 1)}
        self._sums: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def observe(self, value: float, *values: str) -> None:
        counts = self._counts.get(values)
        if counts is None:
            counts = self._counts[values] = [0] * (len(self._bounds) + 1)
            self._sums[values] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[values] += value

    def count(self, *values: str) -> int:
        return sum(self._counts.get(values, ()))

    def sum(self, *values: str) -> float:
        return self._sums.get(values, 0.0)

    def families(self, common: dict[str, str]) -> Iterator[Metric]:
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        for prefix in self.prefixes:
            family = HistogramMetricFamily(f"{prefix}:{self.name}", self.help, labels=[*common, *self.labels])
            for values, counts in self._counts.items():
                cumulative, total = [], 0
                for bound, count in zip(bounds, counts, strict=True):
                    total += count
                    cumulative.append((bound, float(total)))
                family.add_metric([*common.values(), *values], cumulative, self._sums[values])
            yield family
