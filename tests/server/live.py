"""The application on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from slipstream.engine.protocol import Engine
from slipstream.server.app import create_app
from slipstream.server.context import ServerContext
from slipstream.server.listen import bind
from slipstream.server.options import ServerOptions
from slipstream.server.run import run_server
from tests.server.serving import served

PATIENCE = 10.0  # seconds


@dataclass
class Live:
    context: ServerContext
    app: FastAPI
    url: str
    port: int
    stop: asyncio.Event
    running: asyncio.Task[None]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read shows soon
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock)
        self.writers.append(writer)
        return reader, writer

    async def send(
        self, body: dict[str, Any], path: str = "/v1/completions"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A POST whose answer is for the caller to read."""
        reader, writer = await self.connect()
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def live(engine: Engine, *, signals: bool = False, **options: Any) -> AsyncIterator[Live]:
    """Stopped, and with nothing left open, at the end. `signals`: those of this process are the server's."""
    model = options.pop("model", None) or served(max_model_len=options.pop("max_model_len", 1 << 16))
    context = ServerContext(engine, model, ServerOptions(port=0, **options))
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = create_app(context)
    stop, listening = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        run_server(context, listener, on_listening=lambda url: listening.set(), signals=signals, stop=stop, app=app)
    )
    try:
        await asyncio.wait_for(listening.wait(), PATIENCE)
        server = Live(context, app, f"http://127.0.0.1:{port}", port, stop, running)
        try:
            yield server
        finally:
            for writer in server.writers:
                writer.close()
    finally:
        stop.set()
        await asyncio.wait_for(running, PATIENCE)
        listener.close()
        assert not context.lifecycle.streams
        assert not context.lifecycle.open_ids


async def until(condition: Any) -> None:
    """Fails if it does not come true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


@contextmanager
def in_thread(engine: Engine, **options: Any) -> Iterator[str]:
    """The URL of a server in a thread of its own, for clients that block."""
    started = threading.Event()
    found: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = []

    async def run() -> None:
        async with live(engine, **options) as server:
            done = asyncio.Event()
            found.append((asyncio.get_running_loop(), done, server.url))
            started.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(PATIENCE)
        loop, done, url = found[0]
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(done.set)
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()
