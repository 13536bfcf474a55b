"""Drafts by a trained head on the target's hidden states. EAGLE: Li et al., arXiv 2401.15077."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.head_runner import HeadRow
from slipstream.engine.head_states import HeadStates
from slipstream.engine.plan import RowResult
from slipstream.engine.request import Request
from slipstream.engine.row_drafter import (
    DraftPool,
    DraftRow,
    Follower,
    RowDrafter,
    draft_plan_row,
    draft_sampling,
)
from slipstream.spec.step_times import StepTimes

Floats = NDArray[np.float32]


class RunsHead(Protocol):
    @property
    def hidden_size(self) -> int: ...

    def run(self, rows: Sequence[HeadRow]) -> tuple[tuple[RowResult, ...], list[Floats]]: ...


@dataclass(slots=True, eq=False)
class _Follower(Follower):
    """`computed`: positions that the head was shown with states of the target, from `origin` of the request on."""

    origin: int = 0
    made: Floats | None = None  # by the head, of the last token that it was fed

    @property
    def due(self) -> int:
        """The first position of the request that the head lacks. The last one that has a state is fed again if it lacks
        none: what it made of it is not kept."""
        return min(self.origin + self.computed, len(self.request.tokens) - 2)

    @property
    def lag(self) -> int:
        return len(self.request.tokens) - 1 - self.due


_Row = DraftRow[_Follower]


class HeadDrafter(RowDrafter[_Follower]):
    """Position i of the head's own KV cache holds what it made of the target's state there and of token i + 1; of the
    tokens that it drafts, of its own output instead of a state. That is replaced when the target has computed them.

    It sees a request from the first position on whose state is known: not what came from the prefix cache, and of what
    it has not read for long the last positions only. States are forgotten as soon as they have been read.
    """

    name = "draft_head"
    chance = 0.4

    def __init__(
        self,
        runner: RunsHead,
        pool: DraftPool,
        states: HeadStates,
        times: StepTimes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """states: what the target's runner fills. times: of the head's steps; without them drafting counts as free.
        rng: what drafts that are judged are drawn with; None: one seeded by the system."""
        super().__init__(pool, times, rng)
        self.piece = states.most
        self._runner = runner
        self._states = states

    def lag(self, request: Request) -> int:
        first, _ = self._states.known(request.id)
        follower = self._followers.get(request.id)
        seen = first if follower is None or not follower.table.blocks else follower.origin + follower.computed
        return max(1, len(request.tokens) - 1 - max(first, seen))

    def warm_up(self, wanted: Sequence[tuple[Request, int]]) -> None:
        for request, _ in wanted:
            self._states.put(request.id, 0, np.zeros((len(request.tokens), self._runner.hidden_size), np.float32))
        super().warm_up(wanted)

    def close(self, key: str) -> None:
        super().close(key)
        self._states.forget(key)

    # ---- one call ----

    def _start(self, wanted: Sequence[tuple[Request, int]]) -> list[_Row]:
        found: list[_Row] = []
        for index, (request, count) in enumerate(wanted):
            first, stop = self._states.known(request.id)
            shown = len(request.tokens) - 1
            if not first < shown <= stop:
                continue
            follower = self._follower(request, first)
            # The last drafted token is never fed.
            count = min(count, self._pool.max_model_len - (shown - follower.origin) + 1)
            if count > 0:
                follower.last_call = self._calls
                found.append(DraftRow(index, follower, count))
        return [row for row in found if self._reserve(row.follower, _length(row.follower) + row.count - 1)]

    def _follower(self, request: Request, first: int) -> _Follower:
        follower = self._followers.get(request.id)
        if follower is None:
            follower = self._followers[request.id] = _Follower(request, draft_sampling(request))
        if not follower.table.blocks or first > follower.due:
            follower.origin, follower.computed = first, 0
        return follower

    def _caught_up(self, rows: list[_Row]) -> list[_Row]:
        portions = self._portions(rows, [row.follower.lag for row in rows])
        if not portions:
            return []
        fed = [self._feed(row, count) for row, count in portions]
        ready = self._run([row for row, _ in portions], fed)
        for row, count in portions:
            follower = row.follower
            follower.computed = follower.due + count - follower.origin
            self._states.forget_before(follower.request.id, follower.origin + follower.computed - 1)
        return ready

    def _go_on(self, rows: list[_Row]) -> None:
        self._run(rows, [_next(row) for row in rows])

    def _drafted(self, row: _Row) -> None:
        row.follower.made = None

    def _feed(self, row: _Row, count: int) -> HeadRow:
        follower = row.follower
        start, end = follower.due, follower.due + count
        tokens = tuple(follower.tokens[start + 1 : end + 1])
        states = self._states.read(follower.request.id, start, end)
        return _head_row(row, tokens, start - follower.origin, states, samples=end == len(follower.tokens) - 1)

    def _run(self, rows: Sequence[_Row], fed: Sequence[HeadRow]) -> list[_Row]:
        """Those that have one more token."""
        results, made = self._runner.run(fed)
        ready = []
        for row, part, result, state in zip(rows, fed, results, made, strict=True):
            row.follower.made = state
            if part.plan.samples:
                ready.append((row, result))
        self._take([row for row, _ in ready], [result for _, result in ready])
        return [row for row, _ in ready if row.tokens]


def _length(follower: _Follower) -> int:
    """Positions from `origin` on that have a state of the target."""
    return len(follower.tokens) - 1 - follower.origin


def _next(row: _Row) -> HeadRow:
    follower = row.follower
    assert follower.made is not None
    start = _length(follower) + len(row.tokens) - 1
    return _head_row(row, (row.tokens[-1],), start, follower.made[None], samples=True)


def _head_row(row: _Row, tokens: tuple[int, ...], start: int, states: Floats, *, samples: bool) -> HeadRow:
    plan = draft_plan_row(row, tokens, start, samples=samples)
    return HeadRow(plan, row.follower.origin + 1, states)
