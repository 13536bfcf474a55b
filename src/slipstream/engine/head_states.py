"""The target's hidden states, kept from the step that computed them until the draft head has read them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.plan import StepPlan

Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Kept:
    """States of the positions first .. first + count - 1, in order."""

    first: int
    count: int = 0
    parts: deque[Floats] = field(default_factory=deque)

    @property
    def stop(self) -> int:
        return self.first + self.count

    def append(self, states: Floats) -> None:
        self.parts.append(states)
        self.count += len(states)

    def drop_before(self, position: int) -> None:
        while self.parts and self.first + len(self.parts[0]) <= position:
            count = len(self.parts.popleft())
            self.first, self.count = self.first + count, self.count - count
        if self.parts and self.first < position:
            cut = position - self.first
            self.parts[0] = self.parts[0][cut:].copy()
            self.first, self.count = position, self.count - cut

    def drop_from(self, position: int) -> None:
        while self.parts and self.stop - len(self.parts[-1]) >= position:
            self.count -= len(self.parts.pop())
        if self.parts and self.stop > position:
            cut = self.stop - position
            self.parts[-1] = self.parts[-1][:-cut].copy()
            self.count -= cut


class HeadStates:
    """A `StatesSink`. Of each request that wants them the states of the last `most` positions at most: those of refused
    drafts are replaced when their positions are computed again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[str, _Kept] = {}

    def __call__(self, plan: StepPlan, states: Floats) -> None:
        """states: [tokens, n], rows in plan order."""
        end = 0
        for row in plan.rows:
            start, end = end, end + len(row.tokens)
            if row.wants_states:
                skipped = max(0, len(row.tokens) - self.most)
                # A copy: one request's rows must not keep those of all others.
                self.put(row.request_id, row.start + skipped, states[start + skipped : end].copy())

    def known(self, key: str) -> tuple[int, int]:
        """[first, stop) of the positions whose states are there; (0, 0) if there are none."""
        kept = self._kept.get(key)
        return (0, 0) if kept is None else (kept.first, kept.stop)

    def read(self, key: str, start: int, stop: int) -> Floats:
        """[stop - start, n]; all of them must be known."""
        kept = self._kept[key]
        parts, at = [], kept.first
        for part in kept.parts:
            low, high = max(start - at, 0), min(stop - at, len(part))
            if low < high:
                parts.append(part[low:high])
            at += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def forget_before(self, key: str, position: int) -> None:
        self._kept[key].drop_before(position)

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    def put(self, key: str, start: int, states: Floats) -> None:
        """states: [positions from `start` on, n]; kept as they are."""
        kept = self._kept.get(key)
        if kept is not None:
            kept.drop_from(start)
        if kept is None or not kept.first <= start <= kept.stop or not kept.count:
            kept = self._kept[key] = _Kept(start)
        kept.append(states)
        kept.drop_before(kept.stop - self.most)
