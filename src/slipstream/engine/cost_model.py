"""How long a step will take, learned while running, and how large a prefill chunk may therefore be."""

from __future__ import annotations

import math
from typing import Protocol


class StepCostModel(Protocol):
    def observe(self, num_tokens: int, num_rows: int, context: int, seconds: float) -> None:
        """A step fed `num_tokens` in `num_rows` that attend to `context` tokens in total."""
        ...

    def estimate(self, num_tokens: int, num_rows: int, context: int) -> float | None:
        """Seconds; None while too little is known."""
        ...

    def chunk_limit(self, num_rows: int, context: int, objective: float) -> int | None:
        """Prefill tokens that a step with these decode rows can take and still end within `objective` seconds."""
        ...


class LinearCostModel:
    """seconds = a + b * tokens + c * rows + d * context by recursive least squares with forgetting.

    (Haykin, Adaptive Filter Theory, chapter on RLS.) Inputs are scaled to about one. A coefficient that comes
    out negative counts as zero in estimates: nothing gets cheaper by doing more.

    Steps scatter about their estimate, so half of those that are filled up to an objective would miss it. `chunk_limit`
    therefore keeps a margin: a factor above the estimate that one step in ten exceeds, followed while running (a
    stochastic approximation of that quantile, Robbins and Monro 1951).
    """

    _SCALE = (1.0, 1 / 256, 1 / 16, 1 / 8192)
    _EXCEEDED = 0.1  # share of the steps
    _GAIN = 0.1  # of the margin's steps
    _BAND = 0.02  # a step this little above the margin is not counted as exceeding it
    _MOST_UNREAD = 32
    _MAX_MARGIN = 2.0  # a machine that scatters more than this is not held to the objective at any price

    def __init__(self, forgetting: float = 0.98, min_observations: int = 8, min_chunk: int = 16) -> None:
        """`min_chunk`: the least that `chunk_limit` answers, so that a prompt always advances."""
        self._forgetting = forgetting
        self._min_observations = min_observations
        self._min_chunk = min_chunk
        self._weights = [0.0] * 4
        self._inverse = [[1e4 if i == j else 0.0 for j in range(4)] for i in range(4)]
        self._observations = 0
        self._unread: list[tuple[int, int, int, float]] = []
        self._margin = 1.0

    @property
    def margin(self) -> float:
        """The factor that `chunk_limit` allows for."""
        self._read()
        return self._margin

    def observe(self, num_tokens: int, num_rows: int, context: int, seconds: float) -> None:
        # Nobody asks after most steps, and learning from many at once spares cold caches.
        self._unread.append((num_tokens, num_rows, context, seconds))
        if len(self._unread) == self._MOST_UNREAD:
            self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for each in unread:
            self._learn(*each)

    def _learn(self, num_tokens: int, num_rows: int, context: int, seconds: float) -> None:
        # Written out: every step of the engine comes through here.
        x0, x1, x2, x3 = self._features(num_tokens, num_rows, context)
        expected = self._estimate(num_tokens, num_rows, context)
        if expected is not None and expected > 0.0:
            exceeded = seconds / expected > self._margin * (1.0 + self._BAND)
            moved = self._margin + self._GAIN * (exceeded - self._EXCEEDED)
            self._margin = min(self._MAX_MARGIN, max(1.0, moved))
        inverse = self._inverse
        p0, p1, p2, p3 = projected = [a * x0 + b * x1 + c * x2 + d * x3 for a, b, c, d in inverse]
        denominator = self._forgetting + p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3
        gain = [p / denominator for p in projected]
        w0, w1, w2, w3 = self._weights
        error = seconds - (w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3)
        self._weights = [w + g * error for w, g in zip(self._weights, gain, strict=True)]
        trace = inverse[0][0] + inverse[1][1] + inverse[2][2] + inverse[3][3]
        # In a direction that is never excited forgetting would inflate the inverse without bound.
        shrink = self._forgetting if trace < 1e6 else 1.0
        self._inverse = [
            [(a - g * p0) / shrink, (b - g * p1) / shrink, (c - g * p2) / shrink, (d - g * p3) / shrink]
            for (a, b, c, d), g in zip(inverse, gain, strict=True)
        ]
        self._observations += 1

    def estimate(self, num_tokens: int, num_rows: int, context: int) -> float | None:
        self._read()
        return self._estimate(num_tokens, num_rows, context)

    def _estimate(self, num_tokens: int, num_rows: int, context: int) -> float | None:
        if self._observations < self._min_observations:
            return None
        x = self._features(num_tokens, num_rows, context)
        return sum(max(0.0, w) * value for w, value in zip(self._weights, x, strict=True))

    def chunk_limit(self, num_rows: int, context: int, objective: float) -> int | None:
        base = self.estimate(num_rows, num_rows + 1, context)
        if base is None:
            return None
        per_token = max(0.0, self._weights[1]) * self._SCALE[1]
        if per_token == 0.0:
            return None
        room = (objective / self._margin - base) / per_token
        return None if math.isinf(room) else max(self._min_chunk, int(room))

    def _features(self, num_tokens: int, num_rows: int, context: int) -> tuple[float, float, float, float]:
        constant, tokens, rows, length = self._SCALE
        return constant, num_tokens * tokens, num_rows * rows, context * length
