"""A scheduler, a fake model and the loop between them, with the block bookkeeping proved after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling_fakes import FakeModel, sequential

from slipstream.engine.cost_model import StepWork
from slipstream.engine.drafts import NoDrafts
from slipstream.engine.plan import StepPlan
from slipstream.engine.request import Request, make_request
from slipstream.engine.scheduler import RequestUpdate, Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.kv.manager import KVManager
from slipstream.sampling.params import SamplingParams
from slipstream.spec.proposer import Draft


def request(
    name: str,
    num_prompt: int,
    max_tokens: int = 4,
    *,
    first: int = 0,
    arrival: float = 0.0,
    priority: int = 0,
    deadline: float | None = None,
    **params: object,
) -> Request:
    return make_request(
        name,
        [(first + i) % 7 for i in range(num_prompt)],
        SamplingParams(max_tokens=max_tokens, seed=0, **params),  # type: ignore[arg-type]
        max_model_len=1000,
        arrival=arrival,
        priority=priority,
        deadline=deadline,
    )


class Loop:
    """A scheduler with blocks of 4 and the fake model."""

    def __init__(
        self,
        blocks: int = 64,
        caching: bool = False,
        drafts: Callable[[Request], Sequence[int]] | None = None,
        policy: object = None,
        limit: object = None,
        cost_model: object = None,
        **settings: object,
    ) -> None:
        self.kv = KVManager(blocks, 4, caching)
        self.settings = SchedulerSettings(**({"watermark": 0.0} | settings))  # type: ignore[arg-type]
        self.scheduler = Scheduler(
            self.settings,
            self.kv,
            policy=policy,
            limit=limit,
            cost_model=cost_model,  # type: ignore[arg-type]
            proposer=Proposer(drafts) if drafts else None,
        )
        self.model = FakeModel(4, self.settings.max_num_batched_tokens, self.settings.max_num_seqs)
        self.now = 0.0

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each)

    def plan(self) -> StepPlan:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        return plan

    def apply(self, plan: StepPlan) -> list[RequestUpdate]:
        updates = self.scheduler.apply(plan, self.model.run(plan), self.now)
        self.kv.check(self.scheduler.requests)
        return updates

    def step(self) -> list[tuple[str, int, int]]:
        """(request, start, number of tokens) of each row, after the step was applied."""
        plan = self.plan()
        self.apply(plan)
        return [(row.request_id, row.start, len(row.tokens)) for row in plan.rows]

    def finish_all(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()


class KnownCost:
    """Steps take what the coefficients say: of the step, its tokens, rows, context and pairs, in seconds."""

    margin = 1.0

    def __init__(
        self,
        step: float = 0.0,
        token: float = 0.0,
        row: float = 0.0,
        context: float = 0.0,
        pair: float = 0.0,
        most_tokens: int = 10**6,
    ) -> None:
        self.weights = step, token, row, context, pair
        self.most_tokens = most_tokens
        self.observed: list[tuple[StepWork, float]] = []

    def __repr__(self) -> str:
        return f"KnownCost{(*self.weights, self.most_tokens)}"

    def observe(self, work: StepWork, seconds: float) -> None:
        self.observed.append((work, seconds))

    def estimate(self, work: StepWork) -> float | None:
        return sum(weight * value for weight, value in zip(self.weights, (1, *work), strict=True))


class Proposer(NoDrafts):
    max_tokens = 64

    def __init__(self, draft: Callable[[Request], Sequence[int]]) -> None:
        self._draft = draft

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [Draft(tuple(self._draft(each))) for each in requests]


def right(count: int) -> Callable[[Request], list[int]]:
    """Drafts that the fake model accepts."""

    def draft(request: Request) -> list[int]:
        return sequential(request.tokens, count)

    return draft
