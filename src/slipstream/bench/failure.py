"""Why a request of a load test failed. Failures are counted by kind and never enter a latency."""

from __future__ import annotations

import os

from slipstream.errors import EngineError


class FailedRequestError(EngineError):
    """`kind`: connect, disconnect, malformed, timeout, refused, empty, "http 429" (or another status), or server
    (an error object inside a stream)."""

    def __init__(self, kind: str, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.kind = kind
        super().__init__(what, where=where, fix=fix)


def connect_failure(error: OSError, where: str) -> FailedRequestError:
    return FailedRequestError(
        "connect",
        f"cannot be reached: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}.",
        where=where,
        fix="Is the server running, and is this its address?",
    )
