"""What every route is given: the engine, the model, the settings, the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from slipstream.engine.protocol import Engine
from slipstream.server.errors import NotReadyError
from slipstream.server.model import ServedModel
from slipstream.server.options import ServerOptions


@dataclass(slots=True)
class Lifecycle:
    """Whether new requests are taken."""

    draining: bool = False


@dataclass(frozen=True, slots=True)
class ServerContext:
    """`clock`: seconds that never go back; `wall`: seconds since the epoch."""

    engine: Engine
    model: ServedModel
    options: ServerOptions
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    @property
    def engine_ready(self) -> bool:
        """Engines that can be not ready say so in `ready`."""
        return bool(getattr(self.engine, "ready", True))

    def require_open(self) -> None:
        """Raises NotReadyError while the server drains."""
        if self.lifecycle.draining:
            raise NotReadyError("the server is shutting down.", retry_after=self.options.drain_timeout)


def get_context(request: Request) -> ServerContext:
    return cast(ServerContext, request.app.state.context)


Context = Annotated[ServerContext, Depends(get_context)]
