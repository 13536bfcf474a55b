"""Streams whose text is held back for a while, as before a stop string: pings come by the clock, not by the token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import GenerationRequest
from tests.server.live import live

pytestmark = pytest.mark.anyio

BODIES = {
    "/v1/completions": {"prompt": "a", "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "stream": True},
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
    },
    "/v1/responses": {"input": "a", "stream": True},
}


class Holding(EchoEngine):
    """Tokens without text, until it is told to go on and there were 20."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        number = 0
        while number < 20 or not self.go_on.is_set():
            number += 1
            yield OutputDelta(request.request_id, 0, "", (number,))
            await asyncio.sleep(0.002)
        stats = CompletionStats(1, number, 0, 0, 0.0, 0.0, 0.0, 0.0)
        yield OutputDelta(request.request_id, 0, "done", (0,), finish_reason="stop", stats=stats)


@pytest.mark.parametrize("path", BODIES)
async def test_tokens_that_are_held_back_cause_no_ping(path: str) -> None:
    engine = Holding()
    engine.go_on.set()
    async with live(engine, ping_interval=1000.0) as server:
        reader, _ = await server.send(BODIES[path], path)
        seen = await asyncio.wait_for(reader.readuntil(b"done"), 5)
    assert b": ping" not in seen


@pytest.mark.parametrize("path", BODIES)
async def test_pings_come_although_tokens_do(path: str) -> None:
    engine = Holding()
    async with live(engine, ping_interval=0.05) as server:
        reader, _ = await server.send(BODIES[path], path)
        await asyncio.wait_for(reader.readuntil(b": ping"), 5)
        engine.go_on.set()
        await asyncio.wait_for(reader.readuntil(b"done"), 5)
