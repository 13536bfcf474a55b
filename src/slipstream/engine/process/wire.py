"""What the two processes say to each other: msgspec types over msgpack, one message per event or step."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import Any

import msgspec

from slipstream.config.types import EngineOptions
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.process.wire_errors import WireError
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.request import FinishReason
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import FailureKind, InvalidParamsError
from slipstream.sampling.logprobs import TokenLogprob


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# ---- to the engine's process ----


class Start(Message, frozen=True):
    options: EngineOptions
    cache_dir: str | None
    heartbeat: float  # seconds between two beats
    warm_up: bool


class Add(Message, frozen=True):
    """`handle`: a number that is never used again, so that late deltas cannot meet a new request of the same id.
    `arrival`: seconds on the machine's monotonic clock, which both processes read."""

    handle: int
    request: GenerationRequest
    arrival: float


class Abort(Message, frozen=True):
    handle: int


class AskTimeline(Message, frozen=True):
    question: int
    request_id: str


class Close(Message, frozen=True):
    pass


ToChild = Start | Add | Abort | AskTimeline | Close


# ---- from it ----


class Beat(Message, frozen=True):
    """A sign of life. `steps` counts finished steps; `in_step`: whether one is under way."""

    steps: int
    in_step: bool


class Ready(Message, frozen=True):
    info: EngineInfo
    stats: EngineStats


class Failed(Message, frozen=True):
    """It could not start, or the core broke; the process ends after this."""

    error: WireError


class WireDelta(msgspec.Struct, frozen=True, array_like=True):
    """An OutputDelta with the handle in place of the request's id."""

    handle: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: CompletionStats | None = None
    num_accepted: int = 0
    accepted_characters: int = 0
    error_kind: FailureKind | None = None


class Stepped(Message, frozen=True):
    """All that one step brought. `made`: seconds on the monotonic clock."""

    deltas: list[WireDelta]
    made: float
    stats: EngineStats | None = None


class Refused(Message, frozen=True):
    handle: int
    error: WireError


class Timeline(Message, frozen=True):
    question: int
    timeline: RequestTimeline | None


class Closed(Message, frozen=True):
    stats: EngineStats


FromChild = Beat | Ready | Failed | Stepped | Refused | Timeline | Closed

_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(ToChild)
_from_child = msgspec.msgpack.Decoder(FromChild)


def encode(message: ToChild | FromChild) -> bytes:
    return _encoder.encode(message)


def decode_to_child(data: bytes) -> ToChild:
    return _to_child.decode(data)


def decode_from_child(data: bytes) -> FromChild:
    return _from_child.decode(data)


def encode_add(handle: int, request: GenerationRequest, arrival: float) -> bytes:
    """Raises InvalidParamsError for a request that holds anything but what its types say."""
    where = f"request {request.request_id}"
    ids: Any = request.prompt_token_ids
    if isinstance(ids, str):
        raise InvalidParamsError("prompt_token_ids holds text.", where=where, fix="Encode it with the tokenizer.")
    try:
        if type(ids) is not tuple or not set(map(type, ids)) <= {int}:  # NumPy's numbers, for instance
            request = replace(request, prompt_token_ids=tuple(map(index, ids)))
        return encode(Add(handle, request, arrival))
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidParamsError(f"cannot be handed to the engine: {error}.", where=where) from error


def wire_delta(handle: int, delta: OutputDelta) -> WireDelta:
    return WireDelta(
        handle,
        delta.index,
        delta.text,
        delta.token_ids,
        delta.logprobs,
        delta.prompt_logprobs,
        delta.finish_reason,
        delta.stop_reason,
        delta.error,
        delta.stats,
        delta.num_accepted,
        delta.accepted_characters,
        delta.error_kind,
    )


def output_delta(request_id: str, delta: WireDelta) -> OutputDelta:
    return OutputDelta(
        request_id,
        delta.index,
        delta.text,
        delta.token_ids,
        delta.logprobs,
        delta.prompt_logprobs,
        delta.finish_reason,
        delta.stop_reason,
        delta.error,
        delta.stats,
        delta.num_accepted,
        delta.accepted_characters,
        delta.error_kind,
    )
