"""The server's process: uvicorn around the application, and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from slipstream.server.app import create_app
from slipstream.server.context import ServerContext
from slipstream.server.errors import NotReadyError
from slipstream.server.guard import guarded

logger = logging.getLogger("slipstream.server")

BACKLOG = 2048
LAST_WORDS = 2.0  # seconds in which requests that are ended can still tell their clients
POLL = 0.02


def serve(
    context: ServerContext, listener: socket.socket, *, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT, then drain; a second signal ends what is under way.

    `on_listening` is called with the URL once connections are accepted.
    """
    asyncio.run(run_server(context, listener, on_listening=on_listening))


async def run_server(
    context: ServerContext,
    listener: socket.socket,
    *,
    on_listening: Callable[[str], None] | None = None,
    signals: bool = True,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    app: FastAPI | None = None,
) -> None:
    """As `serve`. Setting `stop` is a first signal, setting `hurry` a second. `app`: one that `create_app` has made of
    the context."""
    server = _Server(_config(context, app or create_app(context)))
    stop, hurry = stop or asyncio.Event(), hurry or asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    handled = (signal.SIGTERM, signal.SIGINT) if signals else ()
    for number in handled:
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(POLL)
        if on_listening is not None and not serving.done():
            on_listening(url_of(context, listener))
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await drain(context, hurry)
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        for number in handled:
            loop.remove_signal_handler(number)


async def drain(context: ServerContext, hurry: asyncio.Event) -> None:
    """Take no new requests, wait for those under way, and end after `drain_timeout`, or once `hurry` is set, those that
    are left."""
    lifecycle, timeout = context.lifecycle, context.options.drain_timeout
    lifecycle.draining = True
    logger.info("draining: %d requests under way, at most %g s", len(lifecycle.streams), timeout)
    await _until(lambda: not lifecycle.open_ids or hurry.is_set(), context, timeout)
    if lifecycle.open_ids:
        why = "a second signal" if hurry.is_set() else "draining took too long"
        logger.warning("%s: %d requests are ended", why, len(lifecycle.streams))
        for stream in list(lifecycle.streams):
            stream.fail(NotReadyError("the server was stopped before the answer was complete."))
        await _until(lambda: not lifecycle.open_ids, context, LAST_WORDS)


async def _until(done: Callable[[], bool], context: ServerContext, timeout: float) -> None:
    end = context.clock() + timeout
    while not done() and context.clock() < end:
        await asyncio.sleep(POLL)


def url_of(context: ServerContext, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{context.options.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would stop listening at once, and die of the signal afterwards."""
        yield


def _config(context: ServerContext, app: FastAPI) -> uvicorn.Config:
    options = context.options
    return uvicorn.Config(
        app,
        http=guarded(options.header_timeout, options.write_timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(options.keep_alive_timeout)),
        timeout_graceful_shutdown=round(LAST_WORDS),
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
        ssl_keyfile_password=options.tls_key_password,
        backlog=BACKLOG,
    )
