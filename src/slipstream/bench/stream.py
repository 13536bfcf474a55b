"""One streamed answer of an OpenAI-compatible server, timed chunk by chunk."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream.bench.failure import FailedRequestError
from slipstream.bench.sse import EventReader


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class StreamedAnswer:
    """A `Receiver` for a streamed completion.

    `times` are the moments (seconds on the client's clock) at which chunks with something in them arrived: text, or
    a token count that grew. `counts` are the tokens of these chunks by the server's running count, and are empty
    when it gives none. `keep_text` joins the text, to be tokenised later.

    Raises FailedRequestError from `body` and `check`: malformed, server, refused ("http N"), disconnect, empty.
    """

    def __init__(self, *, keep_text: bool = False) -> None:
        self.times = array("d")
        self.counts = array("l")
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.text: list[str] = []
        self._keep_text = keep_text
        self._status = 0
        self._retry_after: str | None = None
        self._events = EventReader()
        self._error = bytearray()
        self._counted = 0
        self._ended = False

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        self._retry_after = headers.get("retry-after")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status == 200 and kind != "text/event-stream":
            raise FailedRequestError("malformed", f"the server answers with {kind or 'no type'}, not with a stream.")

    def body(self, now: float, data: bytes) -> None:
        if self._status != 200:
            self._error += data[: 4096 - len(self._error)]
            return
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self._ended = True
            else:
                self._take(now, event)

    def check(self) -> None:
        """To be called when the response is whole."""
        if self._status != 200:
            raise refusal(self._status, bytes(self._error), self._retry_after)
        if not self._ended and self.finish_reason is None:
            raise FailedRequestError("disconnect", "the stream ended without a finish reason.")
        if not self.times:
            raise FailedRequestError("empty", "the stream held no token.")

    def _take(self, now: float, event: bytes) -> None:
        try:
            chunk = _CHUNK.decode(event)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise FailedRequestError("malformed", f"a chunk is not what the API says: {error}.") from error
        if chunk.error is not None:
            raise FailedRequestError("server", f"the server reports: {error_message(chunk.error)}")
        grown = 0
        if chunk.usage is not None:
            self.usage = chunk.usage
            count = chunk.usage.completion_tokens
            if count is not None and chunk.choices:
                grown = count - self._counted
                self._counted = count
        content = False
        for choice in chunk.choices or ():
            delta = choice.delta
            text = choice.text or (delta and (delta.content or delta.reasoning_content)) or ""
            content = content or bool(text)
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            if text and self._keep_text:
                self.text.append(text)
        if content or grown > 0:
            self.times.append(now)
            if self._counted:
                self.counts.append(grown)


def refusal(status: int, body: bytes, retry_after: str | None = None) -> FailedRequestError:
    """The failure that an error response stands for, with the server's own words."""
    try:
        parsed = msgspec.json.decode(body)
        message = error_message(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = body[:200].decode("utf-8", errors="replace").strip() or "no reason given"
    wait = f" (retry after {retry_after} s)" if retry_after is not None else ""
    fix = "Give a key with --api-key-file." if status in (401, 403) else None
    return FailedRequestError(f"http {status}", f"the server answers {status}: {message}{wait}", fix=fix)


def error_message(error: Any) -> str:
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return str(message)[:300]
