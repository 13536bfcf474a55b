"""How much of a prompt a step may take beside requests that decode: what the objective for their tokens leaves."""

from __future__ import annotations

from math import inf
from typing import Literal

from slipstream.engine.cost_model import NO_WORK, StepCostModel, StepWork

Objective = float | Literal["auto"] | None  # seconds from token to token of a stream; None: prompts have no bound

AUTO_SECONDS = 0.2  # a pause that a reader hardly notices
AUTO_FACTOR = 2.0  # where decoding alone is slow, a prompt gets as much of a step again


def allowed_seconds(objective: Objective, alone: float | None, drafting: float) -> float:
    """What a step may take when drafts have taken `drafting` seconds before it, and the step without any prompt would
    take `alone` (None: unknown)."""
    if objective is None:
        return inf
    if objective == "auto":
        objective = max(AUTO_SECONDS, AUTO_FACTOR * ((alone or 0.0) + drafting))
    return objective - drafting


class PromptRoom:
    """What a step can still take of prompts, one chunk after the other.

    A chunk is as long as the cost model's estimate of the step, times its margin, stays within what is allowed, and no
    longer than its estimates reach. The first one has `min_chunk` tokens even so, for a prompt always advances; later
    ones wait for the next step rather than be shorter than that.
    """

    def __init__(
        self,
        model: StepCostModel,
        objective: Objective,
        decodes: StepWork = NO_WORK,
        *,
        drafting: float = 0.0,
        min_chunk: int = 1,
    ) -> None:
        """decodes: what the step computes already; if that is nothing, nobody waits for it and there is no bound.
        drafting: seconds that the streams have waited for drafts since the last step."""
        self._model = model
        self._objective = objective if decodes.rows else None
        self._work = decodes
        self._drafting = drafting
        self._min_chunk = min_chunk
        self._allowed: float | None = None  # seconds, by the estimate; None: nobody has asked yet
        self._first = True

    def limit(self, start: int, wanted: int) -> int:
        """Tokens, at most `wanted`, that the step can take of a prompt behind its first `start`; 0: it has to wait."""
        if self._objective is None or wanted < 1:
            return wanted
        if self._allowed is None:
            alone = self._model.estimate(self._work)
            self._allowed = allowed_seconds(self._objective, alone, self._drafting) / self._model.margin
        fitting = min(wanted, self._min_chunk)
        most = min(wanted, self._model.most_tokens - self._work.tokens)
        if most < fitting or not self._fits(start, fitting):
            return fitting if self._first else 0
        too_many = most + 1
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            if self._fits(start, middle):
                fitting = middle
            else:
                too_many = middle
        return fitting

    def take(self, start: int, num_tokens: int) -> None:
        """The step takes a chunk."""
        self._first = False
        self._work = self._work.with_row(start, num_tokens)

    def _fits(self, start: int, num_tokens: int) -> bool:
        seconds = self._model.estimate(self._work.with_row(start, num_tokens))
        return seconds is None or self._allowed is None or seconds <= self._allowed
