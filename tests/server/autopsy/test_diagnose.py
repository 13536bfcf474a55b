"""Every cause, its numbers and its words; and that the parts add up to the whole whatever comes in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.timeline import ChunkTiming, DecodeTiming, PreemptionTiming
from slipstream.server.autopsy.diagnose import diagnose, seconds
from slipstream.server.autopsy.split import Split, prompts_of_others, split
from slipstream.server.autopsy.timeline import Timeline

pytestmark = pytest.mark.fast


def timeline(**changes: Any) -> Timeline:
    """Half a second in all: 0.05 queued, 0.15 prompt, 0.3 answer, on its own."""
    plain: dict[str, Any] = {
        "outcome": "stop",
        "total": 0.5,
        "prompt_tokens": 100,
        "output_tokens": 31,
        "queue": 0.05,
        "first_token": 0.2,
        "last_token": 0.5,
        "chunks": (ChunkTiming(0.05, 0.15, 100, 100, 1),),
        "decode": DecodeTiming(num_steps=30, seconds=0.3, slowest=0.01, mean_rows=1.0),
    }
    return Timeline(**{**plain, **changes})


def parts(given: Timeline) -> dict[str, float]:
    return {name: round(value, 9) for name, value in split(given).items() if round(value, 9)}


def test_alone_it_is_its_own_prompt_and_answer() -> None:
    assert parts(timeline()) == {"queue": 0.05, "prompt": 0.15, "generation": 0.3}
    cause = diagnose(timeline())
    assert (cause.kind, round(cause.seconds, 9), round(cause.share, 9)) == ("generation", 0.3, 0.6)
    assert cause.text == "Generating 31 tokens, 10 ms per token: 300 ms of 500 ms (60%)."
    assert cause.advice == ""


def test_queue() -> None:
    cause = diagnose(timeline(queue=4.0, first_token=4.1, last_token=4.2, total=4.2, chunks=(), running_at_arrival=8))
    assert (cause.kind, cause.seconds) == ("queue", 4.0)
    assert cause.text == (
        "It waited for a place in the batch, 8 running and 0 waiting when it came: 4 s of 4.2 s (95%)."
    )
    assert "max_num_seqs" in cause.advice


def test_queued_although_the_batch_had_room() -> None:
    cause = diagnose(timeline(queue=0.4, first_token=0.45, running_at_arrival=2, max_running_at_arrival=8, chunks=()))
    assert cause.text == (
        "It waited for steps of other requests although the batch had room, 2 running and 0 waiting when it came: "
        "400 ms of 500 ms (80%)."
    )
    assert "max_num_batched_tokens" in cause.advice
    full = timeline(queue=0.4, first_token=0.45, running_at_arrival=8, max_running_at_arrival=8, chunks=())
    assert "max_num_seqs" in diagnose(full).advice


def test_a_request_that_never_ran_only_queued() -> None:
    never = timeline(outcome="abort", queue=None, first_token=None, last_token=None, total=2.0, waiting_at_arrival=3)
    assert parts(never) == {"queue": 2.0}
    assert diagnose(never).text.startswith("It never ran; it waited for a place in the batch, 0 running and 3 waiting")


def test_prompt() -> None:
    slow = timeline(first_token=2.05, total=2.1, last_token=2.1, cached_tokens=20, chunks=())
    cause = diagnose(slow)
    assert (cause.kind, round(cause.seconds, 9)) == ("prompt", 2.0)
    assert cause.text == (
        "Computing 80 prompt tokens, 40 tokens/s; 20 more came from the prefix cache: 2 s of 2.1 s (95%)."
    )
    assert "prefix cache" in cause.advice


def test_advice_about_the_cache_only_where_it_can_help() -> None:
    assert diagnose(timeline(first_token=2.05, total=2.1, last_token=2.1, cached_tokens=90, chunks=())).advice == ""


def test_a_prompts_step_is_shared_out_by_tokens() -> None:
    shared = timeline(chunks=(ChunkTiming(0.05, 0.15, 50, 200, 3),))
    assert parts(shared) == {"queue": 0.05, "prompt": 0.0375, "batch": 0.1125, "generation": 0.3}


def test_time_between_chunks_is_others_time() -> None:
    shared = timeline(chunks=(ChunkTiming(0.05, 0.02, 50, 50, 1), ChunkTiming(0.17, 0.03, 50, 50, 1)))
    assert parts(shared) == {"queue": 0.05, "prompt": 0.05, "batch": 0.1, "generation": 0.3}


def test_prompts_of_others_slow_the_answer() -> None:
    decode = DecodeTiming(num_steps=30, seconds=0.3, shared_steps=10, shared_seconds=0.2, slowest=0.03, mean_rows=4.0)
    cause = diagnose(timeline(decode=decode))
    assert parts(timeline(decode=decode)) == {"queue": 0.05, "prompt": 0.15, "batch": 0.15, "generation": 0.15}
    busy = timeline(decode=decode, total=0.5, queue=0.0, first_token=0.2, chunks=(ChunkTiming(0.0, 0.2, 10, 100, 9),))
    cause = diagnose(busy)
    assert (cause.kind, round(cause.seconds, 9)) == ("batch", 0.33)
    assert cause.text == (
        "Other requests were computed in the meantime, 3.2 on average in its 31 steps: 330 ms of 500 ms (66%)."
    )
    assert "tpot_objective" in cause.advice


def test_if_every_step_was_shared_it_is_shared_out_by_requests() -> None:
    assert prompts_of_others(DecodeTiming(10, 1.0, 10, 1.0, 0.2, mean_rows=4.0)) == 0.75
    assert prompts_of_others(DecodeTiming(10, 1.0, 10, 1.0, 0.2, mean_rows=1.0)) == 0.0
    assert prompts_of_others(DecodeTiming()) == 0.0
    assert prompts_of_others(DecodeTiming(10, 1.0, 5, 0.2, 0.2, 4.0)) == 0.0  # shared ones were quicker


def test_preemption_counts_the_wait_and_the_repeated_work() -> None:
    lost = timeline(
        total=1.5,
        last_token=1.5,
        chunks=(ChunkTiming(0.05, 0.15, 100, 100, 1), ChunkTiming(1.0, 0.2, 110, 110, 1, recomputed=True)),
        preemptions=(PreemptionTiming(0.3, 0.7),),
    )
    assert parts(lost) == {"queue": 0.05, "prompt": 0.15, "preemption": 0.9, "generation": 0.4}
    cause = diagnose(lost)
    assert cause.kind == "preemption"
    assert cause.text == (
        "KV blocks ran out: it was sent back 1 time and 110 tokens were computed again: 900 ms of 1.5 s (60%)."
    )
    assert "KV cache" in cause.advice


def test_preempted_within_the_prompt() -> None:
    lost = timeline(
        first_token=1.2,
        last_token=1.5,
        total=1.5,
        chunks=(
            ChunkTiming(0.05, 0.1, 60, 60, 1),
            ChunkTiming(0.95, 0.1, 60, 60, 1, recomputed=True),
            ChunkTiming(1.05, 0.15, 40, 40, 1),
        ),
        preemptions=(PreemptionTiming(0.15, 0.8),),
    )
    assert parts(lost) == {"queue": 0.05, "prompt": 0.25, "preemption": 0.9, "generation": 0.3}


def test_a_request_that_never_came_back_after_preemption() -> None:
    lost = timeline(outcome="abort", total=3.0, last_token=3.0, preemptions=(PreemptionTiming(0.5, None),))
    assert parts(lost) == {"queue": 0.05, "prompt": 0.15, "preemption": 2.5, "generation": 0.3}


def test_stream() -> None:
    cause = diagnose(timeline(total=2.0, stream_wait=1.5))
    assert (cause.kind, cause.seconds) == ("stream", 1.5)
    assert cause.text == "The answer was ready and its reader was not: 1.5 s of 2 s (75%)."


def test_the_server_itself() -> None:
    late = timeline(intake=0.4, total=1.5, stream_wait=0.2)
    assert parts(late) == {"queue": 0.05, "prompt": 0.15, "generation": 0.3, "server": 1.2, "stream": 0.2}
    cause = diagnose(late)
    assert cause.text == (
        "The server read the request for 400 ms and wrote the answer after the engine was done: 1.2 s of 1.9 s (63%)."
    )
    assert parts(timeline(queue=None, total=0.5, intake=0.25)) == {"queue": 0.5, "server": 0.25}


def test_refused_running_and_unknown() -> None:
    refused = diagnose(timeline(outcome="refused", total=0.002))
    assert (refused.kind, refused.text) == ("refused", "It was refused after 2 ms; nothing ran.")
    running = diagnose(timeline(outcome="running", measured=False, total=3.0))
    assert running.kind == "none"
    assert running.text == "It has been running for 3 s; where the time went is known when it ends."
    crashed = diagnose(timeline(outcome="error", measured=False, total=3.0))
    assert crashed.text == "It ended after 3 s, and the engine has no record of its steps."
    nothing = diagnose(timeline(total=0.0))
    assert (nothing.kind, nothing.seconds, nothing.share) == ("none", 0.0, 0.0)


def test_of_equal_parts_the_earlier_is_named() -> None:
    even = timeline(queue=0.25, first_token=0.25, last_token=0.5, chunks=())
    assert diagnose(even).kind == "queue"


def test_one_token_has_no_pace() -> None:
    one = timeline(output_tokens=1, queue=0.0, first_token=0.0, chunks=(), last_token=0.5)
    assert diagnose(one).text == "Generating 1 token: 500 ms of 500 ms (100%)."


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123456, "12.3 ms"), (1.0, "1 s"), (2.256, "2.26 s"), (1234.5, "1234 s"), (0.0, "0 ms")]
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


instants = st.floats(-1, 50) | st.none()
chunks = st.builds(
    ChunkTiming, st.floats(0, 50), st.floats(0, 5), st.integers(1, 64), st.integers(1, 256), st.integers(1, 9),
    st.booleans(),
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    st.builds(
        Timeline,
        outcome=st.sampled_from(["stop", "abort", "refused", "running", "error"]),
        measured=st.booleans(),
        total=st.floats(0, 100),
        intake=st.floats(0, 2),
        stream_wait=st.floats(0, 200),
        prompt_tokens=st.integers(1, 500),
        output_tokens=st.integers(0, 50),
        queue=instants,
        first_token=instants,
        last_token=instants,
        chunks=st.lists(chunks, max_size=5).map(tuple),
        decode=st.builds(
            DecodeTiming, st.integers(10, 20), st.floats(0, 50), st.integers(0, 10), st.floats(0, 50), st.just(1.0),
            st.floats(1, 9),
        ),
        preemptions=st.lists(st.builds(PreemptionTiming, st.floats(0, 50), instants), max_size=3).map(tuple),
    )
)  # fmt: skip
def test_parts_are_never_negative_and_add_up(given: Timeline) -> None:
    found = split(given)
    assert isinstance(found, Split)
    assert all(value >= 0.0 for _, value in found.items())
    assert sum(value for _, value in found.items()) == pytest.approx(given.intake + given.total, abs=1e-6)
    cause = diagnose(given)
    assert 0.0 <= cause.share <= 1.0 + 1e-9
    assert cause.text.endswith(".")
