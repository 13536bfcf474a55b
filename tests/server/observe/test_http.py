"""HTTP, watched from outside the application."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from slipstream.engine.echo import EchoEngine
from slipstream.engine.protocol import GenerationRequest
from slipstream.metrics.serving import ServingMetrics
from slipstream.server.observe.http import HttpObserver
from slipstream.server.observe.log import RequestLog
from slipstream.server.observe.record import RequestRecord

pytestmark = pytest.mark.fast


class Watch:
    def __init__(self, app: Any) -> None:
        self.metrics = ServingMetrics("m", EchoEngine().stats)
        self.log = RequestLog()
        self.delivered: list[tuple[RequestRecord, str | None]] = []
        self.now = 0.0
        self.observer = HttpObserver(
            app,
            self.metrics,
            self.log,
            on_delivered=lambda record, parent: self.delivered.append((record, parent)),
            clock=lambda: self.now,
        )

    def ask(self, path: str, method: str = "GET", *, slow: float = 0.0, headers: Any = ()) -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            self.now += slow
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": list(headers)}
        asyncio.run(self.observer(scope, receive, send))
        return sent


def watched() -> Watch:
    app = FastAPI()
    watch = Watch(app)

    @app.get("/a/{name}")
    async def answer(name: str) -> PlainTextResponse:
        watch.now += 2.0
        return PlainTextResponse("ok", headers={"X-Request-Id": name})

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a defect")

    return watch


def record(name: str, arrival: float = 1.0) -> RequestRecord:
    asked = GenerationRequest(name, (1, 2))
    return RequestRecord.of(asked, EchoEngine().stats(), now=arrival, unix=0.0)


def test_requests_are_counted_by_template_and_status() -> None:
    watch = watched()
    watch.ask("/a/one")
    watch.ask("/a/two")
    watch.ask("/nowhere/at/all")
    watch.ask("/a/one", "BREW")
    with pytest.raises(RuntimeError):
        watch.ask("/broken")
    counted = watch.metrics.http_requests
    assert counted.value("GET", "unmatched", "404") == 1
    assert counted.value("other", "unmatched", "405") + counted.value("other", "/a/{name}", "405") == 1
    assert counted.value("GET", "/a/{name}", "200") == 2
    assert counted.value("GET", "/broken", "500") == 1


def test_an_answer_is_matched_to_its_records() -> None:
    watch = watched()
    for name in ("x-0", "x-1", "x-10", "y"):
        watch.log.add(record(name))
    watch.ask("/a/x", slow=0.5, headers=[(b"traceparent", b"00-aa-bb-01")])
    assert [(each.request_id, parent) for each, parent in watch.delivered] == [
        ("x-0", "00-aa-bb-01"),
        ("x-1", "00-aa-bb-01"),
    ]
    each = watch.delivered[0][0]
    assert (each.received, each.delivered, each.stream_wait) == (0.0, 3.0, 1.0)
    assert watch.metrics.stream_wait.count() == 2
    assert (
        watch.metrics.http_duration.sum("GET", "/a/{name}") + watch.metrics.http_duration.sum("GET", "unmatched") == 3
    )
    watch.ask("/a/y")
    assert watch.delivered[-1][0].request_id == "y"
    watch.ask("/a/y")  # the id again, for a request that never reached the engine
    assert len(watch.delivered) == 3


def test_what_is_not_http_passes() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    watch = Watch(app)

    async def nothing(*_: Any) -> Any:
        return {}

    asyncio.run(watch.observer({"type": "lifespan"}, nothing, nothing))
    assert seen == ["lifespan"]
