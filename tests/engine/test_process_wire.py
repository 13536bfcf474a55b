"""What crosses the process boundary arrives as it was."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.decision import Decision
from slipstream.config.types import EngineOptions
from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.process.totals import _GAUGES, _TOTALS, add_totals, without_gauges
from slipstream.engine.process.wire import (
    Abort,
    Add,
    AskTimeline,
    Beat,
    Close,
    Closed,
    Failed,
    Ready,
    Refused,
    Start,
    Stepped,
    Timeline,
    WireDelta,
    decode_from_child,
    decode_to_child,
    encode,
    encode_add,
    output_delta,
    wire_delta,
)
from slipstream.engine.process.wire_errors import WireError, from_wire, to_wire
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest, RequestSpeculation
from slipstream.engine.queue import QueueFullError
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineError,
    EngineUnavailableError,
    OverloadedError,
    SlipstreamError,
    TextTooLongError,
)
from slipstream.sampling.params import MAX_SEED, SamplingParams

few = settings(deadline=None, max_examples=40)

texts = st.text(max_size=20)
token_ids = st.integers(0, 2**31)
params = st.builds(
    SamplingParams,
    n=st.integers(1, 4),
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    logit_bias=st.dictionaries(token_ids, st.floats(-100, 100), max_size=3),
    bad_words_ids=st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    seed=st.none() | st.integers(0, MAX_SEED),
    logprobs=st.none() | st.integers(0, 20),
)
requests = st.builds(
    GenerationRequest,
    request_id=texts,
    prompt_token_ids=st.lists(token_ids, max_size=20).map(tuple),
    params=params,
    prompt=st.none() | texts,
    priority=st.integers(-(2**40), 2**40),
    timeout=st.none() | st.floats(0, 1e6),
    tenant=st.none() | texts,
    speculative=st.none()
    | st.builds(RequestSpeculation, st.sampled_from(["off", "auto", "ngram"]), st.none() | token_ids),
)
timelines = st.from_type(RequestTimeline)
deltas = st.from_type(OutputDelta)


def finite(value: object) -> bool:
    """NaN is not equal to itself."""
    if isinstance(value, float):
        return not math.isnan(value)
    if dataclasses.is_dataclass(value):
        return all(finite(getattr(value, field.name)) for field in dataclasses.fields(value))
    return all(map(finite, value)) if isinstance(value, tuple) else True


def short(value: object) -> bool:
    """Integers of 64 bits, as msgpack has them."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if dataclasses.is_dataclass(value):
        return all(short(getattr(value, field.name)) for field in dataclasses.fields(value))
    return all(map(short, value)) if isinstance(value, tuple) else True


@given(requests, st.integers(1, 2**60))
@few
def test_requests(request: GenerationRequest, handle: int) -> None:
    assert decode_to_child(encode_add(handle, request, 1.5)) == Add(handle, request, 1.5)


@given(st.lists(deltas.filter(finite).filter(short), max_size=3))
@few
def test_deltas(made: list[OutputDelta]) -> None:
    message = Stepped([wire_delta(i, delta) for i, delta in enumerate(made)], 1.5)
    arrived = decode_from_child(encode(message))
    assert arrived == message
    assert isinstance(arrived, Stepped)
    assert [output_delta(delta.request_id, wire) for delta, wire in zip(made, arrived.deltas, strict=True)] == made


@given(timelines.filter(finite).filter(short))
@settings(deadline=None, max_examples=10)
def test_timelines(timeline: RequestTimeline) -> None:
    assert decode_from_child(encode(Timeline(1, timeline))) == Timeline(1, timeline)


def test_every_other_message() -> None:
    options = EngineOptions.from_flat(model="m", max_num_seqs=3, speculative="auto", seed=MAX_SEED, num_threads=2)
    info = EngineInfo("m", 10, 20, decisions=(Decision("a", None, 1, "w"), Decision("b", "x", True, "w")), pid=3)
    for down in (Start(options, None, 0.5, True), Start(options, "/c", 1.0, False), Abort(3), Close()):
        assert decode_to_child(encode(down)) == down
    assert decode_to_child(encode(AskTimeline(4, "r"))) == AskTimeline(4, "r")
    wire_error = to_wire(EngineError("what", where="where"))
    stats = EngineStats(num_running=3, step_time=0.5)
    for up in (Beat(4, True), Ready(info, stats), Failed(wire_error), Refused(9, wire_error), Closed(stats)):
        assert decode_from_child(encode(up)) == up


def test_no_field_of_a_delta_is_left_behind() -> None:
    names = [field.name for field in dataclasses.fields(OutputDelta)]
    assert WireDelta.__struct_fields__ == ("handle", *names[1:])
    stats = CompletionStats(1, 2, 3, 4, 0.5, 0.6, 0.7, 0.8)
    delta = OutputDelta("r", 1, "t", (5,), (), (None,), "stop", "s", "e", stats, 1, 2)
    assert output_delta("r", wire_delta(3, delta)) == delta


def all_errors(kind: type[SlipstreamError] = SlipstreamError) -> list[type[SlipstreamError]]:
    """No engine raises those of the rooms above it, which other tests may have imported by now."""
    above = ("slipstream.bench.", "slipstream.server.", "slipstream.cli.")
    children = [child for child in kind.__subclasses__() if not child.__module__.startswith(above)]
    return [kind, *(each for child in children for each in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_keeps_its_class_and_its_words(kind: type[SlipstreamError]) -> None:
    if kind is ContextLengthError:
        error: SlipstreamError = ContextLengthError(5, 4, num_output_tokens=2, where="request a")
    elif kind is QueueFullError:
        error = QueueFullError(7, 90, where="request a", retry_after=1.5)
    elif kind is TextTooLongError:
        error = TextTooLongError(90, 8, 10, where="messages")
    else:
        error = kind("it is wrong.", where="here", fix="Do that.")
    arrived = from_wire(to_wire(error))
    assert type(arrived) is kind
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))
    assert {RequestTooLargeError, QueueFullError} < set(all_errors())


@pytest.mark.parametrize("kind", [OverloadedError, DeadlineError, EngineUnavailableError])
def test_retry_after_arrives(kind: type[OverloadedError]) -> None:
    arrived = from_wire(to_wire(kind("busy.", retry_after=2.5)))
    assert isinstance(arrived, kind)
    assert arrived.retry_after == 2.5


def test_other_errors_become_engine_errors_and_unknown_ones_their_nearest_base() -> None:
    arrived = from_wire(to_wire(ZeroDivisionError("by zero")))
    assert (type(arrived), str(arrived)) == (EngineError, "ZeroDivisionError: by zero")
    wire = WireError(("FromTheFutureError", "OverloadedError"), "busy", "busy", None, None, {"retry_after": 1.0})
    assert type(from_wire(wire)) is OverloadedError


def test_totals_go_on_over_a_restart_and_gauges_do_not() -> None:
    names = {field.name for field in dataclasses.fields(EngineStats)}
    kept = {"kv_blocks_total", "num_restarts", "warm_up_time", "speculation_warning"}
    assert set(_TOTALS) | set(_GAUGES) | kept == names
    first = EngineStats(
        num_running=4, num_finished=3, kv_blocks_used=9, kv_blocks_total=10, step_time=1.5, accepted_per_position=(3,)
    )
    both = add_totals(
        without_gauges(first),
        EngineStats(num_finished=2, step_time=0.5, kv_blocks_used=1, accepted_per_position=(2, 1)),
    )
    assert both.accepted_per_position == (5, 1)
    assert (both.num_finished, both.step_time, both.kv_blocks_used, both.num_running) == (5, 2.0, 1, 0)


def test_restarts_wait_twice_as_long_each_time_up_to_a_limit() -> None:
    settings = ProcessSettings(backoff=0.5, max_backoff=5.0)
    assert [settings.delay(failures) for failures in (1, 2, 3, 4, 5, 500)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert (settings.heartbeat, ProcessSettings(heartbeat_timeout=0.8).heartbeat) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("heartbeat_timeout", 0.0), ("step_timeout", -1.0), ("backoff", -0.1), ("max_backoff", 0.0), ("close_timeout", 0)],
)
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ProcessSettings(**{name: value})
