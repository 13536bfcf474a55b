"""HTTP/1.1 connections of a load generator: asyncio streams of bytes, one request at a time on each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from slipstream.bench.endpoint import Endpoint
from slipstream.bench.failure import FailedRequestError, connect_failure
from slipstream.bench.http import ResponseReader, request_bytes

Clock = Callable[[], float]


class Receiver(Protocol):
    """Takes a response as it arrives. `now` is the moment the bytes came in, before anything looked at them."""

    def head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def body(self, now: float, data: bytes) -> None: ...


@dataclass(slots=True)
class Meter:
    """Time that the client itself spent on what arrived."""

    seconds: float = 0.0
    pieces: int = 0  # reads from a socket
    slowest: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.pieces += 1
        self.slowest = max(self.slowest, seconds)


@dataclass(slots=True)
class Collected:
    """A receiver that keeps everything."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def body(self, now: float, data: bytes) -> None:
        self.data += data


class Connection(asyncio.Protocol):
    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._receiver: Receiver | None = None
        self._finished: asyncio.Future[None] | None = None
        self.answered = False  # something of the response under way has come
        self.usable = False

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send one request; returns when the response is whole. Raises FailedRequestError, and is then closed."""
        assert self._transport is not None
        self._reader, self._receiver = ResponseReader(), receiver
        self._finished = asyncio.get_running_loop().create_future()
        self.answered = False
        try:
            if self._transport.is_closing():
                raise FailedRequestError("disconnect", "the server closed the connection.")
            self._transport.write(request)
            await self._finished
        except BaseException:
            self.close()
            raise
        finally:
            self._receiver = self._finished = None
        if not self._reader.keep_alive or self._reader.rest:
            self.close()

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.usable = True

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        if self._receiver is None or self._finished is None or self._finished.done():
            self.close()
            return
        try:
            before = self._reader.status
            body = self._reader.feed(data)
            self.answered = True
            if self._reader.status != before:
                self._receiver.head(self._reader.status, self._reader.headers)
            if body:
                self._receiver.body(now, body)
        except FailedRequestError as failure:
            self._finished.set_exception(failure)
        else:
            if self._reader.done:
                self._finished.set_result(None)
        self._meter.add(self._clock() - now)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._finished is None or self._finished.done():
            return
        try:
            self._reader.end()
            self._finished.set_result(None)
        except FailedRequestError as failure:
            self._finished.set_exception(failure)


class Client:
    """Keeps connections open between requests. `headers` go with every request."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str], *, clock: Clock = perf_counter) -> None:
        self.endpoint = endpoint
        self.clock = clock
        self.meter = Meter()
        self._headers = {"Host": endpoint.authority, "Accept-Encoding": "identity", **headers}
        self._ssl = ssl.create_default_context() if endpoint.scheme == "https" else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def send(self, method: str, path: str, body: bytes, receiver: Receiver) -> None:
        """Raises FailedRequestError. A kept connection that the server had meanwhile closed is replaced once."""
        kind = {"Content-Type": "application/json"} if body else {}
        request = request_bytes(method, self.endpoint.base + path, {**self._headers, **kind}, body)
        connection = self._kept()
        if connection is not None:
            try:
                await self._exchange(connection, request, receiver)
                return
            except FailedRequestError as failure:
                if failure.kind != "disconnect" or connection.answered:
                    raise
        await self._exchange(await self._connect(), request, receiver)

    async def fetch(self, method: str, path: str, body: bytes = b"") -> Collected:
        receiver = Collected()
        await self.send(method, path, body, receiver)
        return receiver

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _exchange(self, connection: Connection, request: bytes, receiver: Receiver) -> None:
        try:
            await connection.exchange(request, receiver)
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                self._open.discard(connection)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._open.discard(connection)
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self.meter, self.clock), self.endpoint.host, self.endpoint.port, ssl=self._ssl
            )
        except OSError as error:
            raise connect_failure(error, self.endpoint.url()) from error
        self._open.add(connection)
        return connection
