"""How long a step will take, learned while running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def estimate(self, work: StepWork, usual: StepWork = NO_WORK) -> float | None:
        """Seconds; None while too little is known. `usual`: the part of it that steps have had before."""
        ...


class LinearCostModel:
    """seconds = a + b * tokens + c * rows + d * context + e * pairs by recursive least squares with forgetting.

    Only what a step tells anew is forgotten of old (Kulhavy, restricted exponential forgetting, Automatica 1987): an
    hour of decodes follows the machine's pace and leaves alone what is known of prompts. Inputs are scaled to about
    one. A coefficient that comes out negative counts as zero for what comes on top of the usual: nothing gets cheaper
    by doing more.

    Steps scatter about their estimate, so half of those that are filled up to an objective would miss it. `margin`
    is what one step in ten exceeds, followed while running (a stochastic approximation of that quantile, Robbins and
    Monro 1951).

    What a line says far from what has been seen is worth nothing: after decodes alone it has no notion of what a
    token of a prompt costs. Estimates reach to `_REACH` times the largest step so far (and to `_FIRST` tokens while
    there are none), so that prompts find out by doubling.
    """

    _SCALE = (1.0, 1 / 64, 1 / 16, 1 / 8192, 1 / (1 << 20))
    _EXCEEDED = 0.1  # share of the steps
    _GAIN = 0.1  # of the margin's steps
    _BAND = 0.02  # a step this little above the margin is not counted as exceeding it
    _MOST_UNREAD = 32
    _MAX_MARGIN = 2.0  # a machine that scatters more than this is not held to the objective at any price
    _REACH = 2
    _FIRST = 64

    def __init__(self, forgetting: float = 0.98, min_observations: int = 8) -> None:
        self._forgetting = forgetting
        self._min_observations = min_observations
        size = len(self._SCALE)
        self._weights = [0.0] * size
        self._inverse = [[1e4 if i == j else 0.0 for j in range(size)] for i in range(size)]
        self._observations = 0
        self._unread: list[tuple[StepWork, float]] = []
        self._margin = 1.0
        self._largest = 0

    @classmethod
    def taught(cls, measured: Mapping[tuple[int, int, int], float]) -> LinearCostModel:
        """By steps measured beforehand: (rows, tokens of all rows, tokens in front of each row) -> seconds."""
        model = cls()
        for (rows, tokens, context), seconds in measured.items():
            model.observe(work_of([(context, tokens // rows)] * rows), seconds)
        model._read()
        model._margin = 1.0
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
        self._unread.append((work, seconds))
        if work.tokens > self._largest:
            self._largest = work.tokens
        if len(self._unread) == self._MOST_UNREAD:
            self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for work, seconds in unread:
            self._learn(work, seconds)

    def _learn(self, work: StepWork, seconds: float) -> None:
        # Written out: every step of the engine comes through here.
        x0, x1, x2, x3, x4 = self._features(work)
        w0, w1, w2, w3, w4 = self._weights
        expected = w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + w4 * x4
        if expected > 0.0 and self._observations >= self._min_observations:
            exceeded = seconds / expected > self._margin * (1.0 + self._BAND)
            moved = self._margin + self._GAIN * (exceeded - self._EXCEEDED)
            self._margin = min(self._MAX_MARGIN, max(1.0, moved))
        inverse = self._inverse
        p0, p1, p2, p3, p4 = projected = [a * x0 + b * x1 + c * x2 + d * x3 + e * x4 for a, b, c, d, e in inverse]
        news = p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3 + p4 * x4
        gain = [p / (1.0 + news) for p in projected]
        error = seconds - expected
        self._weights = [w + g * error for w, g in zip(self._weights, gain, strict=True)]
        kept = self._forgetting
        learned = (kept - 1.0 / (1.0 + news)) / (kept * news)
        self._inverse = [
            [a - f * p0, b - f * p1, c - f * p2, d - f * p3, e - f * p4]
            for (a, b, c, d, e), f in zip(inverse, [p * learned for p in projected], strict=True)
        ]
        self._observations += 1

    def estimate(self, work: StepWork, usual: StepWork = NO_WORK) -> float | None:
        self._read()
        if self._observations < self._min_observations:
            return None
        before = self._features(usual) if usual.rows else (0.0,) * len(self._SCALE)
        known = more = 0.0
        for weight, value, had in zip(self._weights, self._features(work), before, strict=True):
            known += weight * had
            more += max(0.0, weight) * (value - had)
        return max(0.0, known) + more

    def _features(self, work: StepWork) -> tuple[float, float, float, float, float]:
        constant, tokens, rows, length, pairs = self._SCALE
        return constant, work.tokens * tokens, work.rows * rows, work.context * length, work.pairs * pairs
