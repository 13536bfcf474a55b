"""A small OpenAI-compatible server over EchoEngine, with every way to misbehave that a load test must survive."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine.echo import EchoEngine
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.params import SamplingParams


@dataclass
class Behaviour:
    models: tuple[str, ...] = ("echo",)
    delay: float = 0.0  # before every token
    key: str | None = None
    usage: bool = True
    running_usage: bool = True
    refuses: tuple[str, ...] = ()  # fields of the body that are answered with 400
    tokens_per_chunk: int = 1
    fail_every: int = 0  # every n-th stream is cut off after two chunks
    malformed_every: int = 0
    busy_every: int = 0  # answered with 429
    close_after_each: bool = False
    miscount: int = 0  # added to the last usage
    stop_after: int | None = None  # tokens, unless ignore_eos
    content_type: str = "text/event-stream"
    newline: str = "\n"


@dataclass
class FakeServer:
    behaviour: Behaviour = field(default_factory=Behaviour)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    open_streams: int = 0
    most_open: int = 0
    connections: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self._handlers: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._engine = EchoEngine(delay=self.behaviour.delay, decode=lambda ids: " word" * len(ids))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        listener = socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(self._serve, sock=listener)
        self.port = listener.getsockname()[1]
        try:
            yield self
        finally:
            # A closed server drops, unclosed, what it has just accepted: accept no more and take over those first.
            asyncio.get_running_loop().remove_reader(listener.fileno())
            for _ in range(5):
                await asyncio.sleep(0)
            server.close()
            for handler, writer in list(self._handlers.items()):
                writer.transport.abort()
                await asyncio.wait([handler])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers[task] = writer
        try:
            while await self._one(reader, writer) and not self.behaviour.close_after_each:
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            del self._handlers[task]

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        if self.behaviour.key is not None and headers.get("authorization") != f"Bearer {self.behaviour.key}":
            return self._answer(writer, 401, {"error": {"message": "no valid key"}})
        if (method, path) == ("GET", "/v1/models"):
            return self._answer(writer, 200, {"data": [{"id": name} for name in self.behaviour.models]})
        if method != "POST" or path not in ("/v1/completions", "/v1/chat/completions"):
            return self._answer(writer, 404, {"error": {"message": f"no route {path}"}})
        return await self._completion(json.loads(body), path.startswith("/v1/chat"), writer)

    def _answer(self, writer: asyncio.StreamWriter, status: int, value: Any, extra: str = "") -> bool:
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
        writer.write(head.encode() + data)
        return True

    async def _completion(self, body: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        number, how = len(self.bodies), self.behaviour
        for name in how.refuses:
            if name in body or name in body["stream_options"]:
                return self._answer(writer, 400, {"error": {"message": f"unknown field {name}"}})
        if body["model"] not in how.models:
            return self._answer(writer, 404, {"error": {"message": f"the model {body['model']} does not exist"}})
        if how.busy_every and number % how.busy_every == 0:
            return self._answer(writer, 429, {"error": {"message": "too busy"}}, "Retry-After: 1\r\n")
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        limit = body["max_tokens"]
        if how.stop_after is not None and not body.get("ignore_eos"):
            limit = min(limit, how.stop_after)
        prompt = len(text.split()) + 1
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {how.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        self.open_streams += 1
        self.most_open = max(self.most_open, self.open_streams)
        try:
            return await self._stream(number, limit, prompt, chat, body["stream_options"], writer)
        finally:
            self.open_streams -= 1

    async def _stream(
        self, number: int, limit: int, prompt: int, chat: bool, options: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        how = self.behaviour
        if chat:
            self._event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        request = GenerationRequest(f"r{number}", (1,) * limit, SamplingParams(max_tokens=limit))
        texts, sent, chunks = [], 0, 0
        async for delta in self._engine.generate(request):
            texts.append(delta.text)
            if len(texts) < how.tokens_per_chunk and delta.finish_reason is None:
                continue
            sent, text, texts = sent + len(texts), "".join(texts), []
            choice: dict[str, Any] = {"index": 0, "finish_reason": delta.finish_reason}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            chunk: dict[str, Any] = {"choices": [choice]}
            if options.get("continuous_usage_stats") and how.running_usage:
                chunk["usage"] = {"prompt_tokens": prompt, "completion_tokens": sent}
            self._event(writer, chunk)
            await writer.drain()
            chunks += 1
            if chunks == 2 and how.fail_every and number % how.fail_every == 0:
                return False
            if chunks == 2 and how.malformed_every and number % how.malformed_every == 0:
                self._send(writer, b"data: {broken\n\n")
        if how.usage:
            usage = {"prompt_tokens": prompt, "completion_tokens": sent + how.miscount}
            self._event(writer, {"choices": [], "usage": usage})
        self._send(writer, f"data: [DONE]{how.newline * 2}".encode())
        writer.write(b"0\r\n\r\n")
        return True

    def _event(self, writer: asyncio.StreamWriter, value: Any) -> None:
        self._send(writer, f"data: {json.dumps(value)}{self.behaviour.newline * 2}".encode())

    def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
