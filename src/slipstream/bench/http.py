"""Reading HTTP/1.1 responses (RFC 9112) as they arrive. No sockets: bytes in, body bytes out.

A load generator must be light. This reader does what a streaming response needs and nothing else: it takes a few
microseconds per piece, where general-purpose clients take a hundred and more.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.bench.failure import FailedRequestError

MAX_HEAD = 1 << 16  # bytes
_MAX_LINE = 4096


def request_bytes(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A whole request. `headers` must hold Host; Content-Length is added."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class ResponseReader:
    """One response. `feed` returns the body bytes that have become readable; `done` says that the response is whole.

    `headers` has lower-case names, repeated ones joined with commas. Interim (1xx) responses are passed over.
    Raises FailedRequestError("malformed") for what is not HTTP/1.x.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = True
        self.done = False
        self.rest = b""  # bytes behind the response
        self._buffer = b""
        self._in_head = True
        self._chunked = False
        self._left: int | None = 0  # of the body or the chunk; None: until the connection closes
        self._in_trailer = False
        self._after_chunk = False

    def feed(self, data: bytes) -> bytes:
        if self.done:
            self.rest += data
            return b""
        if self._in_head:
            self._buffer += data
            if not self._read_head():
                return b""
            data, self._buffer = self._buffer, b""
        return self._read_chunks(data) if self._chunked else self._read_plain(data)

    def end(self) -> None:
        """The connection was closed. Raises FailedRequestError("disconnect") if the response is not whole."""
        if not self.done and not self._in_head and self._left is None and not self._chunked:
            self.done = True
        if not self.done:
            raise FailedRequestError("disconnect", "the server closed the connection before the answer was whole.")

    def _read_head(self) -> bool:
        while self._in_head:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                if len(self._buffer) > MAX_HEAD:
                    raise _malformed(f"a response head of more than {MAX_HEAD} bytes")
                return False
            self._buffer = rest
            first, *lines = head.split(b"\r\n")
            words = first.split(b" ", 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (len(words[1]) == 3 and words[1].isdigit()):
                raise _malformed(f"{first[:60]!r} where a status line belongs")
            status = int(words[1])
            if 100 <= status < 200:
                continue
            self._in_head = False
            self.status = status
            self._take_headers(lines, words[0])
        return True

    def _take_headers(self, lines: list[bytes], version: bytes) -> None:
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise _malformed(f"{line[:60]!r} where a header belongs")
            key, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version != b"HTTP/1.0" or "keep-alive" in connection)
        coding = self.headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise _malformed(f"the transfer coding {coding!r}, which was not asked for")
            self._chunked = True
        elif self.status in (204, 304):
            self.done = True
        elif "content-length" in self.headers:
            length = self.headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise _malformed(f"the content length {length!r}")
            self._left = int(length)
            self.done = self._left == 0
        else:
            self._left, self.keep_alive = None, False

    def _read_plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        piece, self.rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self.done = self._left == 0
        return piece

    def _read_chunks(self, data: bytes) -> bytes:
        data = self._buffer + data
        self._buffer = b""
        out: list[bytes] = []
        at = 0
        while not self.done:
            if self._left:
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._after_chunk = True
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > _MAX_LINE:
                    raise _malformed("a chunk without an end")
                self._buffer = data[at:]
                break
            line, at = data[at:end], end + 2
            self._take_line(line)
        if self.done:
            self.rest = data[at:]
        return b"".join(out)

    def _take_line(self, line: bytes) -> None:
        if self._after_chunk:
            if line:
                raise _malformed("a chunk that is longer than it says")
            self._after_chunk = False
        elif self._in_trailer:
            self.done = not line
        else:
            size = line.partition(b";")[0].strip()
            try:
                self._left = int(size, 16) if size.isalnum() else -1
            except ValueError:
                self._left = -1
            if self._left < 0:
                raise _malformed(f"{line[:60]!r} where a chunk's size belongs")
            self._in_trailer = self._left == 0


def _malformed(what: str) -> FailedRequestError:
    return FailedRequestError("malformed", f"the server sent {what}.")
