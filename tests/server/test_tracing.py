"""Spans of finished requests, by way of an exporter in memory, and over OTLP to a small collector."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slipstream.engine.outputs import CompletionStats
from slipstream.errors import ConfigError
from slipstream.server.observe.record import RequestRecord
from slipstream.server.tracing import make_tracing, phases
from tests.server.serving import client_for, echo_app


def record(**changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "request_id": "r",
        "arrived_at": 1000.0,
        "arrival": 10.0,
        "prompt_tokens": 7,
        "n": 1,
        "max_tokens": 16,
        "outcome": "stop",
        "first_token": 10.75,
        "last_token": 11.5,
        "end": 11.5,
        "output_tokens": 4,
        "received": 9.75,
        "delivered": 12.0,
        "stream_wait": 0.25,
        "completions": [CompletionStats(7, 4, 3, 1, 0.5, 0.75, 0.25, 1.5)],
    }
    return RequestRecord(**{**values, **changes})


def spans(*records: tuple[RequestRecord, str | None]) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    tracing = make_tracing("http://collector", "tiny", exporter=exporter)
    for each, parent in records:
        tracing.record(each, parent)
    tracing.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_phases_follow_one_another() -> None:
    assert list(phases(record())) == [
        ("queue", 10.0, 10.5),
        ("prefill", 10.5, 10.75),
        ("decode", 10.75, 11.5),
        ("stream", 11.5, 12.0),
    ]
    assert list(phases(record(completions=[]))) == [
        ("prefill", 10.0, 10.75),
        ("decode", 10.75, 11.5),
        ("stream", 11.5, 12.0),
    ]
    never = record(first_token=None, last_token=None, completions=[], outcome="disconnect", delivered=None)
    assert list(phases(never)) == []
    assert list(phases(record(end=None))) == []


def test_spans() -> None:
    found = spans((record(), None))
    root = found["llm_request"]
    assert root.parent is None
    assert root.kind is SpanKind.SERVER
    assert (root.start_time, root.end_time) == (999_750_000_000, 1_002_000_000_000)
    assert dict(root.attributes or {}) == {
        "gen_ai.request.id": "r",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.n": 1,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("stop",),
        "slipstream.cached_tokens": 3,
        "slipstream.preemptions": 1,
        "slipstream.stream_wait_seconds": 0.25,
    }
    assert root.status.status_code is StatusCode.UNSET
    assert root.resource.attributes["service.name"] == "slipstream"
    for name in ("queue", "prefill", "decode", "stream"):
        parent = found[name].parent
        assert parent is not None
        assert root.context is not None
        assert parent.span_id == root.context.span_id


def test_the_callers_trace_goes_on() -> None:
    root = spans((record(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))["llm_request"]
    assert root.context is not None
    assert root.parent is not None
    assert f"{root.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("parent", ["", "nonsense", "00-zz-zz-01"])
def test_a_trace_context_that_makes_no_sense_is_none(parent: str) -> None:
    assert spans((record(), parent))["llm_request"].parent is None


def test_errors_are_marked() -> None:
    root = spans((record(outcome="error", error="the engine crashed."), None))["llm_request"]
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == "the engine crashed."


def test_a_request_under_way_has_no_span() -> None:
    assert spans((record(end=None), None)) == {}


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://x", "http://"])
def test_an_endpoint_that_is_no_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otel_endpoint: must be an http or https URL"):
        make_tracing(endpoint, "tiny")


def test_asked_for_and_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'slipstream-llm\[otel\]'"):
        make_tracing("http://collector", "tiny")


def test_without_tracing_its_sdk_is_not_imported() -> None:
    code = "import sys, slipstream.server.tracing, slipstream.server.app; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Collector(BaseHTTPRequestHandler):
    seen: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_sends_its_spans_to_a_collector() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    seen: list[tuple[str, bytes]] = []
    collector = HTTPServer(("127.0.0.1", 0), type("Here", (Collector,), {"seen": seen}))
    app = echo_app(otel_endpoint=f"http://127.0.0.1:{collector.server_port}")
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()

    async def use() -> None:
        async with app.router.lifespan_context(app), client_for(app) as client:
            answer = await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 3})
            assert answer.status_code == 200

    try:
        asyncio.run(use())
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    ((path, body),) = seen
    assert path == "/v1/traces"
    for name in (b"llm_request", b"queue", b"prefill", b"decode", b"gen_ai.usage.output_tokens", b"tiny"):
        assert name in body
