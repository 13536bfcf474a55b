"""Streams of named events, each of which says its own type, for the APIs that end without [DONE]."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from slipstream.engine.outputs import CompletionOutput, OutputDelta
from slipstream.errors import SlipstreamError
from slipstream.server.answering import data_or_ping, new_account, open_stream
from slipstream.server.context import ServerContext
from slipstream.server.generate import DeltaStream, Job
from slipstream.server.sse import EventStream, event
from slipstream.server.usage import Account

logger = logging.getLogger("slipstream.server")

Event = dict[str, Any]  # "type" is its name


class EventWriter(Protocol):
    """Turns the deltas of one completion into events."""

    def opening(self) -> list[Event]: ...

    def delta(self, delta: OutputDelta) -> list[Event]: ...

    def closing(self, account: Account) -> list[Event]: ...

    def failed(self, error: SlipstreamError, account: Account) -> list[Event]: ...


async def answer_named_events(
    request: Request, context: ServerContext, job: Job, writer: EventWriter, headers: Mapping[str, str]
) -> Response:
    """Errors that come before the first token have a status of their own."""
    stream, first = await open_stream(request, context, job)
    return EventStream(_events(stream, first, writer, new_account(job)), stream.close, headers)


async def _events(
    stream: DeltaStream, first: Sequence[OutputDelta], writer: EventWriter, account: Account
) -> AsyncGenerator[bytes, None]:
    try:
        out = writer.opening()
        batch: Sequence[OutputDelta] | None = first
        while batch is not None:
            for delta in batch:
                account.add(delta)
                failure = stream.error_of(delta)
                if failure is not None:
                    raise failure
                out += writer.delta(delta)
            if data := data_or_ping(stream, batch, _encode(out)):
                yield data
            out = []
            batch = await stream.batch()
    except SlipstreamError as error:
        logger.warning("stream ended: %s", error)
        yield _encode(writer.failed(error, account))
        return
    yield _encode(writer.closing(account))


def whole_delta(request_id: str, completion: CompletionOutput) -> OutputDelta:
    """A completion that came in one piece, for the `whole` of a writer."""
    return OutputDelta(
        request_id,
        0,
        completion.text,
        tuple(completion.token_ids),
        tuple(completion.logprobs or ()),
        finish_reason=completion.finish_reason or "stop",
        stop_reason=completion.stop_reason,
    )


def _encode(events: Sequence[Event]) -> bytes:
    return b"".join(event(each, each["type"]) for each in events)
