"""A draft model or head, asked where its drafts are expected to be worth their time, which is measured every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from slipstream.engine.request import Request
from slipstream.spec.controller import Controller
from slipstream.spec.cost_line import Lessons
from slipstream.spec.learned_cost import LearnedCost
from slipstream.spec.proposer import Draft

MODEL = 100  # the evidence of what a draft model or head says; proposers' own are below
SMALL_LAG = 64  # tokens that the draft model may lag behind without a question whether feeding them is worth it
HORIZON = 256  # output tokens, at most, that feeding a prompt to the draft model is expected to serve

Wanted = list[tuple[int, int]]  # (index of the request, at most so many tokens)


class SteppingDrafter(Protocol):
    """A drafter that computes: a smaller model, or a head on the target."""

    @property
    def name(self) -> str: ...

    @property
    def chance(self) -> float:
        """That its first token is right, before any has been judged."""
        ...

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[Draft]:
        """For each (request, at most so many tokens), in order."""
        ...

    def warm_up(self, wanted: Sequence[tuple[Request, int]]) -> None:
        """As `propose` for requests that are nobody's, and forget them."""
        ...

    def close(self, key: str) -> None:
        """Forget the request of this id; nothing happens if it is not known."""
        ...

    def lag(self, request: Request) -> int:
        """Tokens that would have to be fed before the first draft."""
        ...

    def cost(self, num_rows: int, num_tokens: int) -> float:
        """Seconds for as many tokens of as many rows, as measured at start-up."""
        ...

    def feeding(self, num_tokens: int) -> float:
        """Seconds for feeding so many tokens of one request that it lags behind."""
        ...


class AskedModel:
    """Chooses whom the model drafts for and how much, and learns from the clock what that takes. One call per step."""

    def __init__(
        self, model: SteppingDrafter, controller: Controller, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.model = model
        self._controller = controller
        self._clock = clock
        self._cost = LearnedCost(model.cost)
        self._seconds = 0.0
        self._lessons = Lessons()

    def taken(self) -> float:
        """Seconds of drafting since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def serves(self, request: Request) -> bool:
        return request.drafter in (None, self.model.name)

    def prefers(self, requests: Sequence[Request], index: int, limit: int, found: Draft) -> bool:
        """Whether asking for a draft of the request promises more than the one that was found."""
        request = requests[index]
        if request.drafter is not None:
            return False
        return self._controller.prefers(
            request.id, found, MODEL, limit, self._cost.current, len(requests), _context(requests)
        )

    def ask(self, requests: Sequence[Request], wanted: Wanted) -> list[tuple[int, Draft]]:
        """What the model says, for those of `wanted` for which asking it is worth its time."""
        context = _context(requests)
        asked = [
            (index, limit)
            for index, limit in wanted
            if self.serves(requests[index]) and self._worth_feeding(requests[index], context)
        ]
        rows = [(requests[index].id, limit) for index, limit in asked]
        others = len(requests) - len(rows)
        lengths = self._controller.wanted(rows, MODEL, self._cost.current, others, context)
        chosen = [(index, length) for (index, _), length in zip(asked, lengths, strict=True) if length]
        if not chosen:
            self._doubt(sum([self.serves(requests[index]) for index, _ in wanted]), bool(rows), len(requests), context)
            return []
        said = self._timed([(requests[index], length) for index, length in chosen])
        return [
            (index, replace(draft, evidence=MODEL))
            for (index, _), draft in zip(chosen, said, strict=True)
            if draft.tokens
        ]

    def _doubt(self, asked: int, probed: bool, rows: int, context: int) -> None:
        """Where the model is never asked, not even as a probe, nothing is learned of its cost: see
        `Controller.doubts`."""
        cost, controller = self._cost, self._controller
        closed = asked and not (probed and controller.could_pay(rows, context, asked=asked, cost=cost.current))
        if closed and controller.doubts(rows, context, asked=asked, cost=cost.foretold):
            cost.fade(asked)

    def _timed(self, chosen: Sequence[tuple[Request, int]]) -> list[Draft]:
        learns = self._controller.timed and self._lessons.next()
        # A prompt that is fed first is none of a draft's usual cost.
        learns = learns and all(self.model.lag(request) <= length + 1 for request, length in chosen)
        started = self._clock()
        said = self.model.propose(chosen)
        seconds = self._clock() - started
        self._seconds += seconds
        if learns:
            longest = max([length for _, length in chosen])
            self._cost.observe(len(chosen), longest, seconds / self._controller.drift)
        return said

    def _worth_feeding(self, request: Request, context: int) -> bool:
        """Whether drafts can be expected to save the time for what the model lacks of the request."""
        lag = self.model.lag(request)
        if lag <= SMALL_LAG:
            return True
        served = min(request.max_tokens - request.num_output_tokens, HORIZON)
        saving = self._controller.saving(request.id, MODEL, self._cost.current, context)
        return served * saving > self.model.feeding(lag)


def _context(requests: Sequence[Request]) -> int:
    return sum([len(request.tokens) for request in requests]) // len(requests)
