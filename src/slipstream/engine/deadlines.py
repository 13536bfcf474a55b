"""Requests with a deadline: ended when it passes, and as soon as it is certain that they cannot meet it."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.engine.cost_model import NO_WORK, StepCostModel
from slipstream.engine.rates import QueueRates
from slipstream.engine.request import Request
from slipstream.errors import DeadlineError

_MARGIN = 0.7  # estimates err: a request is given up only if even this share of its estimate is too long
_INTERVAL = 0.1  # seconds between two looks at the queue


class Deadlines:
    """Estimates are of the least a request needs: what waits before it, its own prompt, and the tokens it must make."""

    def __init__(self, cost_model: StepCostModel, rates: QueueRates) -> None:
        self._cost_model = cost_model
        self._rates = rates
        self._requests: dict[Request, float] = {}
        self._looked = float("-inf")
        self.num_shed = 0  # given up or refused, since start

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            self._requests[request] = request.deadline

    def forget(self, request: Request) -> None:
        self._requests.pop(request, None)

    def __len__(self) -> int:
        return len(self._requests)

    def expired(self, now: float) -> list[Request]:
        return [request for request, deadline in self._requests.items() if deadline <= now]

    def hopeless(
        self, now: float, running: Iterable[Request], queue: Iterable[Request], hit_rate: float
    ) -> list[Request]:
        """Waiting requests that cannot end in time, with the reason as their `error`. `queue` in its order."""
        if now - self._looked < _INTERVAL or not any(each.stats.first_scheduled is None for each in self._requests):
            return []
        self._looked = now
        given_up = []
        ahead, position = _pending(running), 0
        for request in queue:
            if request.deadline is not None and request.stats.first_scheduled is None:
                needed = self._least(request, ahead, position, hit_rate)
                if needed is not None and now + _MARGIN * needed > request.deadline:
                    request.error = _why(needed, request.deadline - now)
                    self.num_shed += 1
                    given_up.append(request)
                    continue
            ahead += len(request.tokens) if request.fork_of is None else 0
            position += 1
        return given_up

    def refuse_hopeless(
        self, request: Request, now: float, running: Iterable[Request], queue: Iterable[Request], hit_rate: float
    ) -> None:
        """Raise DeadlineError if the request, which has just come, could not end in time at the end of the queue."""
        if request.deadline is None:
            return
        waiting = list(queue)
        ahead = _pending(running) + sum(len(each.tokens) for each in waiting if each.fork_of is None)
        needed = self._least(request, ahead, len(waiting), hit_rate)
        left = request.deadline - now
        if needed is not None and _MARGIN * needed > left:
            self.num_shed += 1
            alone = self._least(request, 0, 0, hit_rate)
            raise DeadlineError(
                _why(needed, left).capitalize() + ".",
                where=f"request {request.id}",
                fix="Allow more time, or try again when less is waiting.",
                retry_after=None if alone is None or _MARGIN * alone > left else needed - left,
            )

    def _least(self, request: Request, ahead: int, position: int, hit_rate: float) -> float | None:
        """Seconds from now to the end; None while too little is known."""
        own = len(request.tokens)
        own_cached = min(own - 1, int(own * hit_rate))
        work = NO_WORK.with_row(own_cached, own - own_cached)
        prompts = self._cost_model.estimate(work._replace(tokens=work.tokens + int(ahead * (1.0 - hit_rate))))
        token = self._cost_model.estimate(NO_WORK.with_row(own - 1, 1))
        if prompts is None or token is None:
            return None
        queued = self._rates.seconds_for(position) if position else None
        return max(prompts, queued or 0.0) + (_least_output(request) - 1) * token


def _pending(running: Iterable[Request]) -> int:
    return sum(request.pending for request in running if not request.decoding)


def _least_output(request: Request) -> int:
    params = request.params
    if params.ignore_eos and not params.stop and not params.stop_token_ids:
        return request.max_tokens
    return max(1, params.min_tokens)


def _why(needed: float, left: float) -> str:
    return f"the deadline cannot be met: at least {needed:.3g} s are needed and {max(0.0, left):.3g} s are left"
