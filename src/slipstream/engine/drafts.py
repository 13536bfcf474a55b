"""Who proposes tokens that may follow; the model then verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.plan import StepPlan
from slipstream.engine.request import Request


class DraftProposer(Protocol):
    @property
    def max_tokens(self) -> int:
        """The longest draft; 0: there are none."""
        ...

    def propose(self, requests: Sequence[Request]) -> Sequence[Sequence[int]]:
        """Tokens that may follow each request's known ones; an empty draft is always allowed."""
        ...

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """The step took so long."""
        ...

    def release(self, request: Request) -> None:
        """The request has ended. Called once for each, also for those that were never drafted for."""
        ...


class NoDrafts:
    max_tokens = 0

    def propose(self, requests: Sequence[Request]) -> Sequence[Sequence[int]]:
        return [()] * len(requests)

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        pass

    def release(self, request: Request) -> None:
        pass
