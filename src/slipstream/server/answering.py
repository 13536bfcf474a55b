"""Running a job for one HTTP request: whole or streamed, watching the client all the while."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from fastapi import Request
from starlette.responses import Response

from slipstream.engine.outputs import OutputDelta, RequestOutput
from slipstream.errors import SlipstreamError
from slipstream.server.context import ServerContext
from slipstream.server.errors import error_body
from slipstream.server.generate import DeltaStream, Job, collect
from slipstream.server.schema.common import SharedFields
from slipstream.server.sse import DONE, PING, EventStream, event, while_connected
from slipstream.server.usage import Account

logger = logging.getLogger("slipstream.server")


class ChunkWriter(Protocol):
    """Turns deltas into the JSON of chunks."""

    def opening(self) -> list[dict[str, Any]]: ...

    def chunks(self, delta: OutputDelta) -> list[dict[str, Any]]: ...


def new_account(job: Job) -> Account:
    return Account(sum(len(prompt.token_ids) for prompt in job.prompts), job.params.n)


async def whole_outputs(request: Request, context: ServerContext, job: Job) -> tuple[list[RequestOutput], Account]:
    """Everything the job gives. Raises what `collect` raises, and ClientGoneError when the client does not wait."""
    account = new_account(job)
    outputs = await while_connected(request.receive, collect(context.new_stream(job), job, account.add))
    return outputs, account


async def open_stream(request: Request, context: ServerContext, job: Job) -> tuple[DeltaStream, list[OutputDelta]]:
    """A started stream and its first batch, so that errors that come before it still get a status of their own.
    After `ping_interval` without a token the batch is empty."""
    stream = context.new_stream(job, buffer=context.options.stream_buffer, ping=context.options.ping_interval)
    stream.start()
    try:
        first = await while_connected(request.receive, stream.batch())
    except BaseException:
        await stream.close()
        raise
    return stream, first or []


async def answer_stream(
    request: Request,
    context: ServerContext,
    job: Job,
    body: SharedFields,
    writer: ChunkWriter,
    head: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Response:
    """Chunks as server-sent events, then usage and timings if asked for, then [DONE]."""
    stream, first = await open_stream(request, context, job)
    account = new_account(job)
    events = _events(stream, first, body, writer, head, account)
    return EventStream(events, stream.close, headers)


async def _events(
    stream: DeltaStream,
    first: Sequence[OutputDelta],
    body: SharedFields,
    writer: ChunkWriter,
    head: Mapping[str, Any],
    account: Account,
) -> AsyncGenerator[bytes, None]:
    options = body.stream_options
    include_usage = options is not None and options.include_usage
    continuous = options is not None and options.continuous_usage_stats

    def usage_of() -> dict[str, Any]:
        return {"usage": account.usage()} if continuous else {"usage": None} if include_usage else {}

    try:
        out = [event({**chunk, **usage_of()}) for chunk in writer.opening()]
        batch: Sequence[OutputDelta] | None = first
        while batch is not None:
            for delta in batch:
                account.add(delta)
                failure = stream.error_of(delta)
                if failure is not None:
                    raise failure
                out += [event({**chunk, **usage_of()}) for chunk in writer.chunks(delta)]
            if data := data_or_ping(stream, batch, b"".join(out)):
                yield data
            out = []
            batch = await stream.batch()
    except SlipstreamError as error:
        logger.warning("stream ended: %s", error)
        yield event(error_body(error)) + DONE
        return
    extra: dict[str, Any] = {}
    if include_usage:
        extra["usage"] = account.usage()
    if body.timings:
        extra["timings"] = account.timings()
    last = event({**head, "choices": [], **extra}) if extra else b""
    yield last + DONE


def data_or_ping(stream: DeltaStream, batch: Sequence[OutputDelta], data: bytes) -> bytes:
    """What to send after a batch: `data`, else a ping if it is time for one, else nothing."""
    if data:
        stream.wrote()
        return data
    return PING if not batch or stream.take_ping() else b""


def json_response(data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(data), 200, dict(headers or {}), media_type="application/json")
