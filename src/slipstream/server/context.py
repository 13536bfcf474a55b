"""What every route is given: the engine, the model, the settings, the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from slipstream.engine.protocol import Engine
from slipstream.server.errors import SlowClientError
from slipstream.server.generate import DeltaStream, Job
from slipstream.server.model import ServedModel
from slipstream.server.options import ServerOptions


@dataclass(slots=True)
class Lifecycle:
    """What is under way, and whether new requests are taken."""

    draining: bool = False
    open_ids: set[str] = field(default_factory=set)  # of HTTP requests
    streams: set[DeltaStream] = field(default_factory=set)  # of the engine's work for them


@dataclass(frozen=True, slots=True)
class ServerContext:
    """`clock`: seconds that never go back; `wall`: seconds since the epoch. `on_slow_client`: a stream was given up."""

    engine: Engine
    model: ServedModel
    options: ServerOptions
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    on_slow_client: Callable[[], None] = lambda: None

    def new_stream(self, job: Job, *, buffer: int | None = None, ping: float | None = None) -> DeltaStream:
        """Known to `lifecycle` until it is closed."""
        stream = DeltaStream(self.engine, job, buffer=buffer, ping=ping, on_close=self._on_close)
        self.lifecycle.streams.add(stream)
        return stream

    def _on_close(self, stream: DeltaStream) -> None:
        if stream in self.lifecycle.streams and isinstance(stream.failure, SlowClientError):
            self.on_slow_client()
        self.lifecycle.streams.discard(stream)


async def get_context(request: Request) -> ServerContext:
    """Not a plain function: FastAPI would call one in another thread, which takes longer than all the rest."""
    return cast(ServerContext, request.app.state.context)


Context = Annotated[ServerContext, Depends(get_context)]
