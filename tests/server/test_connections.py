"""Over real sockets: clients that leave, that read slowly, that send slowly, and the end of the server."""

import asyncio
import importlib
import json
import logging
import os
import signal

import httpx
import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import EngineError
from slipstream.sampling.params import SamplingParams
from tests.server.live import live, until
from tests.server.serving import byte_tokenizer

pytestmark = pytest.mark.anyio

LONG = {"prompt": "x" * 5000, "max_tokens": 5000}


@pytest.fixture(params=["h11_impl", "httptools_impl"], autouse=True)
def _both_parsers(request, monkeypatch):
    """Whichever of uvicorn's parsers is installed: the guard works the same over both."""
    if request.param == "httptools_impl":
        pytest.importorskip("httptools")
    module = importlib.import_module(f"uvicorn.protocols.http.{request.param}")
    found = getattr(module, "H11Protocol", None) or module.HttpToolsProtocol
    monkeypatch.setattr("slipstream.server.guard.fastest_protocol", lambda: found)


def engine(**values) -> EchoEngine:
    return EchoEngine(byte_tokenizer().decode, **values)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(stream):
    slow = engine(delay=0.01)
    async with live(slow) as server:
        _, writer = await server.send({**LONG, "stream": stream})
        await until(lambda: slow.stats().num_running == 1)
        other = asyncio.create_task(_post(server, {"prompt": "abc"}))
        writer.close()
        await until(lambda: slow.stats().num_running <= 1)
        assert (await other).json()["choices"][0]["text"] == "abc"
        await until(lambda: slow.stats().num_running == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_queued_request_whose_client_leaves_is_gone_at_once(stream):
    slow = engine(delay=0.01, max_running=1)
    async with live(slow) as server:
        _, first = await server.send({**LONG, "stream": True})
        await until(lambda: slow.stats().num_running == 1)
        _, second = await server.send({**LONG, "stream": stream})
        await until(lambda: slow.stats().num_waiting == 1)
        second.close()
        await until(lambda: slow.stats().num_waiting == 0)
        assert slow.stats().num_running == 1
        first.close()


async def test_a_full_queue_is_a_429():
    slow = engine(delay=0.01, max_running=1, max_queued=1)
    async with live(slow) as server:
        _, first = await server.send(LONG)
        await until(lambda: slow.stats().num_running == 1)
        _, second = await server.send(LONG)
        await until(lambda: slow.stats().num_waiting == 1)
        for stream in (False, True):
            refused = await _post(server, {"prompt": "abc", "stream": stream})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
        first.close()
        second.close()


async def test_a_client_that_does_not_read_loses_its_request():
    fast = engine()
    async with live(fast, stream_buffer=64, write_timeout=0.5) as server:
        many = {**LONG, "n": 100, "stream": True}
        reader, writer = await server.send(many)
        await until(lambda: fast.stats().num_running == 1)
        await until(lambda: fast.stats().num_running == 0)  # long before its 500,000 tokens are written
        assert fast.stats().num_finished < 100
        await until(lambda: not server.context.lifecycle.open_ids)  # and the connection is closed
        assert server.app.state.observation.metrics.backpressure_aborts.value() == 1
        writer.close()
        assert reader is not None


async def test_headers_that_never_end():
    async with live(engine(), header_timeout=0.2) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        assert await _closed(reader)
        reader, writer = await server.connect()  # nothing at all
        assert await _closed(reader)


async def test_headers_that_come_byte_by_byte():
    async with live(engine(), header_timeout=0.3) as server:
        reader, writer = await server.connect()

        async def drip():
            for byte in b"GET /health HTTP/1.1\r\nX-Slow: " + b"x" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await _closed(reader)
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_a_second_request_on_a_connection_is_bounded_too():
    async with live(engine(), header_timeout=0.2) as server:
        reader, writer = await server.connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /health HTTP/1.1\r\n")
        assert await _closed(reader)


async def test_a_body_that_comes_too_slowly():
    async with live(engine(), body_timeout=0.2) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"body_timeout" in answer
        writer.close()


@pytest.mark.parametrize("rest", [b"", b"ZZ\r\n"])
async def test_a_client_that_leaves_within_its_body_is_no_defect(rest, caplog):
    """The log would get a traceback of seventy lines for each, and `rest` makes the server itself end it."""
    async with live(engine()) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        await until(lambda: server.context.lifecycle.open_ids)
        writer.write(rest) if rest else writer.close()
        await until(lambda: not server.context.lifecycle.open_ids)
        assert reader is not None
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_a_body_that_is_too_large_ends_the_connection():
    async with live(engine(), max_body_bytes=1000) as server:
        reader, writer = await server.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 413")
        writer.close()


async def test_silent_streams_are_pinged():
    slow = engine(delay=0.02, max_running=1)
    async with live(slow, ping_interval=0.1) as server:
        _, first = await server.send({**LONG, "stream": True})
        await until(lambda: slow.stats().num_running == 1)
        reader, second = await server.send({"prompt": "abc", "stream": True})
        seen = await asyncio.wait_for(reader.readuntil(b": ping"), 5)
        assert seen.startswith(b"HTTP/1.1 200")
        first.close()
        rest = await asyncio.wait_for(reader.readuntil(b"[DONE]"), 5)
        assert b'"text":"a"' in rest
        second.close()


async def test_draining_finishes_what_has_begun_and_refuses_the_rest():
    slow = engine(delay=0.005)
    async with live(slow, drain_timeout=10.0) as server, httpx.AsyncClient(base_url=server.url) as client:
        begun = [asyncio.create_task(_post(server, {"prompt": "x" * 100, "max_tokens": 100})) for _ in range(4)]
        await until(lambda: slow.stats().num_running == 4)
        server.stop.set()
        await until(lambda: server.context.lifecycle.draining)
        assert (await client.get("/ready")).status_code == 503
        refused = await client.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        for answer in await asyncio.gather(*begun):
            assert answer.json()["choices"][0]["text"] == "x" * 100
        await asyncio.wait_for(server.running, 5)


async def test_draining_ends_what_takes_too_long():
    slow = engine(delay=0.01)
    async with live(slow, drain_timeout=0.2) as server:
        whole = asyncio.create_task(_post(server, LONG))
        streamed = asyncio.create_task(_post(server, {**LONG, "stream": True}))
        await until(lambda: slow.stats().num_running == 2)
        server.stop.set()
        assert (await whole).status_code == 503
        answer = await streamed
        lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "not_ready"
        await asyncio.wait_for(server.running, 5)
        assert slow.stats().num_running == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_what_is_left_without_a_traceback(second, caplog):
    slow = engine(delay=0.01)
    with caplog.at_level(logging.INFO):
        async with live(slow, drain_timeout=1000.0, signals=True) as server:
            whole = asyncio.create_task(_post(server, LONG))
            streamed = asyncio.create_task(_post(server, {**LONG, "stream": True}))
            await until(lambda: slow.stats().num_running == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: server.context.lifecycle.draining)
            os.kill(os.getpid(), second)
            assert (await whole).status_code == 503
            assert '"code":"not_ready"' in (await streamed).text
            await asyncio.wait_for(server.running, 8)
            with pytest.raises(EngineError):  # it was closed, in the usual way
                await anext(aiter(slow.generate(GenerationRequest("late", (1,), SamplingParams()))))
    own = [record for record in caplog.records if record.name != "asyncio"]
    assert "a second signal: 2 requests are ended" in [record.getMessage() for record in own]
    assert not [record for record in own if record.levelno >= logging.ERROR]


async def test_three_hundred_requests_with_random_cancels_leave_nothing():
    fast = engine(delay=0.002, max_running=32)
    async with live(fast, max_model_len=1 << 12) as server:

        async def one(number: int) -> None:
            _, writer = await server.send({"prompt": "x" * 40, "max_tokens": 40, "stream": number % 2 == 0})
            if number % 3:
                await asyncio.sleep((number * 7919 % 100) / 1000)
            else:
                await until(lambda: fast.stats().num_finished > 0)
            writer.close()

        await asyncio.gather(*(one(number) for number in range(300)))
        await until(lambda: fast.stats().num_running == 0 and fast.stats().num_waiting == 0)
        await until(lambda: not server.context.lifecycle.open_ids)


async def _post(server, body):
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        return await client.post("/v1/completions", json=body)


async def _closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionResetError:
        return True
