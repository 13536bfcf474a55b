"""How long a step will take, learned while running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from slipstream.engine.plan import StepPlan


class StepWork(NamedTuple):
    """What a step computes.

    `pairs` are those of a token and a position that it attends to, without the first token of each row: a decode reads
    its context once, which is a matter of memory, while the tokens of a prompt multiply with what has been read.
    """

    tokens: int  # fed, in all rows
    rows: int
    context: int  # tokens that the rows attend to, the fed ones included
    pairs: int

    def with_row(self, start: int, num_tokens: int) -> StepWork:
        """A row more, which feeds `num_tokens` after `start` computed ones."""
        return StepWork(
            self.tokens + num_tokens,
            self.rows + 1,
            self.context + start + num_tokens,
            self.pairs + (num_tokens - 1) * (2 * start + num_tokens + 2) // 2,
        )


NO_WORK = StepWork(0, 0, 0, 0)


def work_of(rows: Iterable[tuple[int, int]]) -> StepWork:
    """Of rows as (computed tokens, fed tokens)."""
    tokens = num_rows = context = pairs = 0
    for start, num_tokens in rows:
        tokens += num_tokens
        num_rows += 1
        context += start + num_tokens
        pairs += (num_tokens - 1) * (2 * start + num_tokens + 2) // 2
    return StepWork(tokens, num_rows, context, pairs)


def plan_work(plan: StepPlan) -> StepWork:
    num_tokens, num_rows = plan.num_tokens, len(plan.rows)
    if num_tokens == num_rows:  # nothing but decodes, in the step that must not take long
        return StepWork(num_tokens, num_rows, num_tokens + sum([row.start for row in plan.rows]), 0)
    return work_of((row.start, len(row.tokens)) for row in plan.rows)


class StepCostModel(Protocol):
    @property
    def margin(self) -> float:
        """The factor above its estimate that few steps exceed; at least 1."""
        ...

    @property
    def most_tokens(self) -> int:
        """The largest step that its estimates are good for."""
        ...

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step took so long."""
        ...

    def estimate(self, work: StepWork) -> float | None:
        """Seconds; None while too little is known."""
        ...


class LinearCostModel:
    """seconds = a + b * tokens + c * rows + d * context + e * pairs, no coefficient below zero, learned while running.

    Least squares of the relative error, so that a second's step does not drown those of ten milliseconds and one that
    was held up counts little. Steps are forgotten at a constant rate, decodes and those with more than one token in a
    row apart: an hour of decodes follows the machine's pace and leaves alone what is known of prompts. Coefficients go
    from where they were to the minimum by coordinate descent, which keeps them where the steps say nothing (over
    moments that are forgotten exponentially; the bound at zero as in Franc, Hlavac and Navara, Sequential
    coordinate-wise algorithm for the non-negative least squares problem, 2005). Prompts move context and pairs alike:
    without the bound these would cancel each other out, and mean nothing for the next prompt.

    Steps scatter about their estimate, so half of those that are filled up to an objective would miss it. `margin`
    is what one step with a prompt in ten exceeds, followed while running (a stochastic approximation of that quantile,
    Robbins and Monro 1951).

    What a line says far from what has been seen is worth nothing: after decodes alone it has no notion of what a
    token of a prompt costs. Estimates reach to `_REACH` times the largest step so far (and to `_FIRST` tokens while
    there are none), so that prompts find out by doubling.
    """

    _EXCEEDED = 0.1  # share of the steps
    _GAIN = 0.1  # of the margin's steps
    _BAND = 0.02  # a step this little above the margin is not counted as exceeding it
    _MOST_UNREAD = 32
    _MAX_MARGIN = 2.0  # a machine that scatters more than this is not held to the objective at any price
    _REACH = 2
    _FIRST = 64
    _SWEEPS = 20

    def __init__(self, forgetting: float = 0.98, min_observations: int = 8) -> None:
        self._forgetting = forgetting
        self._min_observations = min_observations
        self._weights = [0.0] * _NUM_FEATURES
        self._decodes = _Moments()
        self._others = _Moments()
        self._observations = 0
        self._unread: list[tuple[StepWork, float]] = []
        self._margin = 1.0
        self._largest = 0
        self._behind = False  # the weights, of the moments

    @classmethod
    def taught(cls, measured: Mapping[tuple[int, int, int], float]) -> LinearCostModel:
        """By steps measured beforehand: (rows, tokens of all rows, tokens in front of each row) -> seconds."""
        model = cls()
        for (rows, tokens, context), seconds in measured.items():
            model.observe(work_of([(context, tokens // rows)] * rows), seconds)
        return model

    @property
    def margin(self) -> float:
        self._read()
        return self._margin

    @property
    def most_tokens(self) -> int:
        known = self._observations + len(self._unread) >= self._min_observations
        return max(self._FIRST, self._REACH * self._largest) if known else self._FIRST

    def observe(self, work: StepWork, seconds: float) -> None:
        # Nobody asks after most steps, and learning from many at once spares cold caches.
        if seconds > 0.0:
            self._unread.append((work, seconds))
            if work.tokens > self._largest:
                self._largest = work.tokens
            if len(self._unread) == self._MOST_UNREAD:
                self._read()

    def estimate(self, work: StepWork) -> float | None:
        self._read()
        if self._behind:
            self._weights = descended(self._decodes, self._others, self._weights, self._SWEEPS)
            self._behind = False
        return self._estimate(work) if self._observations >= self._min_observations else None

    def _estimate(self, work: StepWork) -> float:
        a, b, c, d, e = self._weights
        return a + b * work.tokens + c * work.rows + d * work.context + e * work.pairs

    def _read(self) -> None:
        if not self._unread:
            return
        unread, self._unread = self._unread, []
        known = self._observations >= self._min_observations
        for work, seconds in unread:
            if work.pairs and (expected := self._estimate(work)) > 0.0 and known:
                self._judge(seconds / expected)
            moments = self._others if work.pairs else self._decodes
            moments.add(work, seconds, self._forgetting)
        self._observations += len(unread)
        self._behind = True

    def _judge(self, ratio: float) -> None:
        exceeded = ratio > self._margin * (1.0 + self._BAND)
        moved = self._margin + self._GAIN * (exceeded - self._EXCEEDED)
        self._margin = min(self._MAX_MARGIN, max(1.0, moved))


_NUM_FEATURES = 5


class _Moments:
    """Of the relative features x / seconds: sums of their products and of themselves, forgotten exponentially."""

    def __init__(self) -> None:
        self.products = [[0.0] * _NUM_FEATURES for _ in range(_NUM_FEATURES)]
        self.sums = [0.0] * _NUM_FEATURES

    def add(self, work: StepWork, seconds: float, forgetting: float) -> None:
        features = [1.0 / seconds, *(each / seconds for each in work)]
        self.sums = [forgetting * old + new for old, new in zip(self.sums, features, strict=True)]
        self.products = [
            [forgetting * old + x * y for old, y in zip(row, features, strict=True)]
            for row, x in zip(self.products, features, strict=True)
        ]


def descended(first: _Moments, second: _Moments, weights: Sequence[float], sweeps: int) -> list[float]:
    """Non-negative weights with which x * weights comes as close to 1 as coordinate descent from `weights` gets."""
    rows = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(first.products, second.products, strict=True)]
    sums = [a + b for a, b in zip(first.sums, second.sums, strict=True)]
    found = list(weights)
    for _ in range(sweeps):
        for i, row in enumerate(rows):
            curvature = row[i]
            if curvature > 0.0:
                slope = sums[i] - sum([a * w for a, w in zip(row, found, strict=True)])
                found[i] = max(0.0, found[i] + slope / curvature)
    return found
