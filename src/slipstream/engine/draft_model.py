"""Drafts by a smaller model: it runs ahead of each request in a KV pool of its own, all rows together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.plan import PlanRow, RowResult, StepPlan
from slipstream.engine.request import Request
from slipstream.engine.row_drafter import (
    DraftPool,
    DraftRow,
    Follower,
    RowDrafter,
    draft_plan_row,
    draft_sampling,
)
from slipstream.engine.runner import Runner
from slipstream.spec.step_times import StepTimes

CATCH_UP = 256  # tokens per call, of all rows that are further behind than drafting itself leaves them


@dataclass(slots=True, eq=False)
class _Follower(Follower):
    known: int = 0  # tokens of the request when it was last drafted for
    fed: tuple[int, ...] = ()  # the drafted tokens that were then fed behind those

    @property
    def lag(self) -> int:
        """Known tokens whose KV is missing, the newest included."""
        return len(self.request.tokens) - self.computed

    def start_anew(self) -> None:
        self.computed, self.known, self.fed = 0, 0, ()

    def catch_on(self) -> None:
        """Keep the KV of those drafted tokens that have become the request's."""
        tokens = self.request.tokens
        right = 0
        while right < len(self.fed) and self.known + right < len(tokens) - 1:
            if self.fed[right] != tokens[self.known + right]:
                break
            right += 1
        if self.fed:
            self.computed = self.known + right
            self.fed = ()


_Row = DraftRow[_Follower]


class ModelDrafter(RowDrafter[_Follower]):
    """Drafts what the smaller model would say, drawn as the request's own tokens are: with its parameters, its
    grammar and the noise of its seed at each position (so drafts are the likelier to be right the more alike the two
    distributions are, at any temperature: drafter-invariant coupling, arXiv 2408.07978), greedily at temperature 0.

    A request is first drafted for when its whole text has been fed: what the draft model lacks, because the request is
    new, was preempted or was served by another proposer, is fed in pieces of `CATCH_UP` tokens per call.
    """

    name = "draft_model"
    chance = 0.7

    def __init__(
        self,
        runner: Runner,
        pool: DraftPool,
        vocab_size: int,
        times: StepTimes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """runner: of the draft model over its own pool; its logits are as wide as the target's. vocab_size: tokens
        that it can be fed. times: of its steps; without them drafting counts as free. rng: what drafts that are
        judged are drawn with; None: one seeded by the system."""
        super().__init__(pool, times, rng)
        self.piece = CATCH_UP
        self._runner = runner
        self._vocab_size = vocab_size
        self._steps = 0

    def lag(self, request: Request) -> int:
        follower = self._followers.get(request.id)
        if follower is None:
            return len(request.tokens)
        follower.catch_on()
        return follower.lag

    # ---- one call ----

    def _start(self, wanted: Sequence[tuple[Request, int]]) -> list[_Row]:
        found: list[_Row] = []
        for index, (request, count) in enumerate(wanted):
            # The last drafted token is never fed.
            count = min(count, self._pool.max_model_len - len(request.tokens) + 1)
            if count > 0 and self._can_read(request):
                follower = self._follower(request)
                follower.last_call = self._calls
                found.append(DraftRow(index, follower, count))
        return [row for row in found if self._reserve(row.follower, len(row.follower.tokens) + row.count - 1)]

    def _can_read(self, request: Request) -> bool:
        """Ids that a model pads its vocabulary with may be out of the other model's reach."""
        follower = self._followers.get(request.id)
        start = 0 if follower is None else follower.known
        return max(request.tokens[start:], default=0) < self._vocab_size

    def _follower(self, request: Request) -> _Follower:
        follower = self._followers.get(request.id)
        if follower is None:
            follower = self._followers[request.id] = _Follower(request, draft_sampling(request))
        follower.catch_on()
        self._kv.commit(follower)
        return follower

    def _caught_up(self, rows: list[_Row]) -> list[_Row]:
        portions = self._portions(rows, [row.follower.lag for row in rows])
        if not portions:
            return []
        plan = [_feed(row, feed) for row, feed in portions]
        results = self._run(plan)
        for (row, _), part in zip(portions, plan, strict=True):
            row.follower.computed += len(part.tokens)
            row.follower.known = len(row.follower.tokens)
            self._kv.commit(row.follower)
        ready = [(row, result) for (row, _), part, result in zip(portions, plan, results, strict=True) if part.samples]
        self._take([row for row, _ in ready], [result for _, result in ready])
        return [row for row, _ in ready if row.tokens]

    def _go_on(self, rows: list[_Row]) -> None:
        self._take(rows, self._run([_next(row) for row in rows]))

    def _drafted(self, row: _Row) -> None:
        follower = row.follower
        follower.known, follower.fed = len(follower.tokens), tuple(row.tokens[:-1])

    def _run(self, rows: list[PlanRow]) -> Sequence[RowResult]:
        self._steps += 1
        return self._runner.execute(StepPlan(self._steps, tuple(rows))).rows


def _feed(row: _Row, num_tokens: int) -> PlanRow:
    follower = row.follower
    start, end = follower.computed, follower.computed + num_tokens
    return draft_plan_row(row, tuple(follower.tokens[start:end]), start, samples=end == len(follower.tokens))


def _next(row: _Row) -> PlanRow:
    return draft_plan_row(row, (row.tokens[-1],), len(row.follower.tokens) + len(row.tokens) - 1, samples=True)
