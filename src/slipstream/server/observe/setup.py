"""What observes one server: made once per application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from slipstream.engine.protocol import Engine
from slipstream.metrics.serving import ServingMetrics
from slipstream.server.observe.engine import ObservedEngine
from slipstream.server.observe.log import RequestLog


@dataclass(frozen=True, slots=True)
class Observation:
    """`engine` is the one that routes must use, so that it is seen what they ask of it."""

    metrics: ServingMetrics
    log: RequestLog
    engine: ObservedEngine


def observe(
    engine: Engine, model_name: str, *, clock: Callable[[], float], wall: Callable[[], float], keep: int = 256
) -> Observation:
    """`keep`: ended requests that stay known. `clock` and `wall` as in `ServerContext`."""
    metrics = ServingMetrics(model_name, engine.stats, lambda: engine.ready)
    log = RequestLog(keep)
    return Observation(metrics, log, ObservedEngine(engine, metrics, log, clock=clock, unix=wall))


async def get_observation(request: Request) -> Observation:
    return cast(Observation, request.app.state.observation)


Observed = Annotated[Observation, Depends(get_observation)]
