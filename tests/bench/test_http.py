from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.bench.failure import FailedRequestError
from slipstream.bench.http import MAX_HEAD, ResponseReader, request_bytes

pytestmark = pytest.mark.fast

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    b"5;name=value\r\nhello\r\n006\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
)
CLOSED = b"HTTP/1.0 200 OK\r\n\r\nhello world"


def read(data: bytes, sizes: list[int]) -> tuple[ResponseReader, bytes]:
    reader, body, at = ResponseReader(), b"", 0
    for size in sizes:
        body += reader.feed(data[at : at + size])
        at += size
    return reader, body + reader.feed(data[at:])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([PLAIN, CHUNKED, CLOSED]), st.lists(st.integers(1, 12), max_size=40))
def test_however_a_response_is_cut_it_reads_the_same(data: bytes, sizes: list[int]) -> None:
    reader, body = read(data, sizes)
    reader.end()
    assert (reader.status, body, reader.done, reader.rest) == (200, b"hello world", True, b"")


def test_heads() -> None:
    reader, _ = read(CHUNKED, [])
    assert reader.headers == {"transfer-encoding": "chunked", "x-a": "1, 2"}
    assert reader.keep_alive
    assert not read(CLOSED, [])[0].keep_alive
    assert not read(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", [])[0].keep_alive
    assert read(b"HTTP/1.1 204 No\r\n\r\n", [])[0].done


def test_what_follows_a_response_is_kept_apart() -> None:
    for data in (PLAIN, CHUNKED):
        reader, body = read(data + b"HTTP/1.1", [])
        assert (body, reader.rest) == (b"hello world", b"HTTP/1.1")
        assert reader.feed(b" 200") == b""
        assert reader.rest == b"HTTP/1.1 200"


@pytest.mark.parametrize("data", [PLAIN, CHUNKED])
def test_every_cut_response_is_a_disconnect(data: bytes) -> None:
    for length in range(len(data)):
        reader, _ = read(data[:length], [])
        with pytest.raises(FailedRequestError) as caught:
            reader.end()
        assert caught.value.kind == "disconnect"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD,
    ],
)
def test_what_is_not_http_is_malformed(data: bytes) -> None:
    with pytest.raises(FailedRequestError) as caught:
        read(data, [])
    assert caught.value.kind == "malformed"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader = ResponseReader()
    with contextlib.suppress(FailedRequestError):
        reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
        reader.end()
        assert reader.done


def test_a_request() -> None:
    assert request_bytes("POST", "/v1/x", {"Host": "h"}, b"{}") == (
        b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    )
