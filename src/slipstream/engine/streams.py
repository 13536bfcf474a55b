"""Deltas on their way from the thread that makes them to the event loops that want them: one call per loop and step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from slipstream.engine.outputs import OutputDelta
from slipstream.engine.timeline import DeliveryTiming
from slipstream.errors import SlipstreamError


@dataclass(slots=True, eq=False)
class Stream:
    """Where the deltas of one request go. `loop` is the event loop that asked; only it touches the rest."""

    loop: asyncio.AbstractEventLoop
    open_completions: int
    items: asyncio.Queue[tuple[float, OutputDelta] | SlipstreamError] = field(default_factory=asyncio.Queue)
    num_taken: int = 0
    delay_total: float = 0.0  # seconds between the end of a step and the caller's taking what it brought
    delay_slowest: float = 0.0

    async def deltas(self) -> AsyncGenerator[OutputDelta, None]:
        """Until every completion has ended; raises the error that ended the request otherwise."""
        while self.open_completions:
            item = await self.items.get()
            if isinstance(item, SlipstreamError):
                self.open_completions = 0
                raise item
            made, delta = item
            self._count(time.monotonic() - made)
            self.open_completions -= delta.finish_reason is not None
            yield delta

    def delivery(self) -> DeliveryTiming:
        return DeliveryTiming(self.num_taken, self.delay_total, self.delay_slowest)

    def _count(self, delay: float) -> None:
        self.num_taken += 1
        self.delay_total += delay
        self.delay_slowest = max(self.delay_slowest, delay)


Item = tuple[float, OutputDelta] | SlipstreamError


def deliver(items: Iterable[tuple[Stream, Item]]) -> list[Stream]:
    """Hand over; the streams whose event loop is closed, so that nobody listens."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = {}
    for stream, item in items:
        by_loop.setdefault(stream.loop, []).append((stream, item))
    deserted: list[Stream] = []
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:
            deserted.extend({id(stream): stream for stream, _ in batch}.values())
    return deserted


def _put_all(batch: list[tuple[Stream, Item]]) -> None:
    for stream, item in batch:
        stream.items.put_nowait(item)
