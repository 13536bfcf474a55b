"""Reading server-sent events (WHATWG HTML, "Server-sent events") as they arrive."""

from __future__ import annotations

from slipstream.bench.failure import FailedRequestError

MAX_EVENT = 1 << 24  # bytes of one event that is not finished
_BOM = b"\xef\xbb\xbf"


class EventReader:
    """`feed` returns the data of every event that is complete; lines end in CR, LF or CRLF; comments, names and ids
    are passed over. An event that the stream's end cuts off is none. Raises FailedRequestError("malformed") for one of
    more than MAX_EVENT bytes."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._started = False
        self._skip_newline = False  # a CR ended the last line: an LF now belongs to it

    def feed(self, chunk: bytes) -> list[bytes]:
        data = self._rest + chunk
        if not self._started:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            self._started = True
            data = data.removeprefix(_BOM)
        if self._skip_newline and data:
            self._skip_newline = False
            data = data.removeprefix(b"\n")
        lines = data.split(b"\n") if b"\r" not in data else self._split(data)
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT:
            raise FailedRequestError("malformed", f"the server sent an event of more than {MAX_EVENT} bytes.")
        events: list[bytes] = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events

    def _split(self, data: bytes) -> list[bytes]:
        self._skip_newline = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            self._data.append(b"")
