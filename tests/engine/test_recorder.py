"""Timelines, against a clock that moves one second per step."""

from __future__ import annotations

import pytest
from core_fakes import Bench

from slipstream.engine.core import EngineCore
from slipstream.engine.outputs import OutputDelta, RequestOutput
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.recorder import TimelineRecorder
from slipstream.engine.timeline import ChunkTiming, CompletionTimeline, DecodeTiming
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


class Timed(Bench):
    """Every step takes half a second and begins half a second after the one before."""

    def __init__(self, blocks: int = 64, *, recorder: TimelineRecorder | None = None, **settings: object) -> None:
        super().__init__(blocks, **settings)  # type: ignore[arg-type]
        self.recorder = recorder or TimelineRecorder(wall=lambda: 1000.0)
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            tokenizer=None,
            vocab_size=7,
            max_model_len=200,
            clock=self.clock,
            recorder=self.recorder,
        )
        run = self.runner.answer

        def answer(plan: StepPlan) -> StepResult:
            self.clock.now += 0.5
            return run(plan)

        self.runner.answer = answer

    def step(self) -> list[OutputDelta]:
        self.clock.now += 0.5
        return self.take(self.core.step())

    def of(self, name: str) -> CompletionTimeline:
        timeline = self.core.timeline(name)
        assert timeline is not None
        return timeline.completions[0]


def test_a_request_alone() -> None:
    bench = Timed(max_num_batched_tokens=4)
    bench.add("a", (1,) * 10, max_tokens=3)
    assert bench.core.timeline("a") is None
    bench.run()
    timeline = bench.core.timeline("a")
    assert timeline is not None
    assert (timeline.request_id, timeline.arrival, timeline.tenant, timeline.timeout) == ("a", 1000.0, None, None)
    assert timeline.completions == (
        CompletionTimeline(
            index=0,
            num_prompt_tokens=10,
            num_cached_tokens=0,
            num_output_tokens=3,
            queue_time=0.5,
            ttft=3.0,
            e2e=5.0,
            chunks=(
                ChunkTiming(0.5, 0.5, 4, 4, 1),
                ChunkTiming(1.5, 0.5, 4, 4, 1),
                ChunkTiming(2.5, 0.5, 2, 2, 1),
            ),
            decode=DecodeTiming(num_steps=2, seconds=1.0, slowest=0.5, mean_rows=1.0),
            finish_reason="length",
        ),
    )


def test_batch_mates_and_the_prompts_of_others() -> None:
    bench = Timed()
    bench.add("a", (1, 2, 3), max_tokens=5)
    bench.step()
    bench.step()
    bench.add("b", (1,) * 20, max_tokens=2)
    bench.run()
    assert bench.of("b").chunks == (ChunkTiming(0.5, 0.5, 20, 21, 2),)
    assert bench.of("a").decode == DecodeTiming(4, 2.0, shared_steps=1, shared_seconds=0.5, slowest=0.5, mean_rows=1.5)
    assert bench.of("b").decode == DecodeTiming(1, 0.5, mean_rows=2.0, slowest=0.5)


def test_a_prompt_of_one_token_and_one_that_the_cache_holds() -> None:
    bench = Timed()
    bench.add("one", (1,), max_tokens=1)
    bench.add("first", (2,) * 9, max_tokens=1)
    bench.run()
    bench.add("again", (2,) * 9, max_tokens=1)
    bench.run()
    assert [chunk.num_tokens for chunk in bench.of("one").chunks] == [1]
    assert bench.of("again").num_cached_tokens == 8
    assert [chunk.num_tokens for chunk in bench.of("again").chunks] == [1]


def test_preemptions_say_how_long_they_cost() -> None:
    bench = Timed(blocks=4, caching=False)
    bench.add("a", (1,) * 7, max_tokens=6)
    bench.add("b", (2,) * 7, max_tokens=6)
    bench.run()
    a, b = bench.of("a"), bench.of("b")
    assert (a.preemptions, a.decode.num_steps) == ((), 5)
    [preemption] = b.preemptions
    # Together in the steps at 0.5, 1.5 and 2.5; away in those at 2.5, 3.5, 4.5 and 5.5; again at 6.5.
    assert (preemption.at, preemption.waited) == (2.5, 4.0)
    assert [(chunk.num_tokens, chunk.recomputed) for chunk in b.chunks] == [(7, False), (9, True)]
    assert b.decode.num_steps == 1 + 3
    assert b.num_output_tokens == 6


def test_completions_of_one_request_come_together() -> None:
    bench = Timed()
    bench.add("a", (1,) * 9, max_tokens=2, n=3)
    bench.run()
    timeline = bench.core.timeline("a")
    assert timeline is not None
    assert [each.index for each in timeline.completions] == [0, 1, 2]
    assert [each.num_cached_tokens for each in timeline.completions] == [0, 8, 8]


def test_what_ends_without_having_run() -> None:
    bench = Timed(max_num_seqs=1)
    bench.add("a", max_tokens=9)
    bench.add("b", max_tokens=9)
    bench.step()
    bench.take(bench.core.abort("b"))
    gone = bench.of("b")
    assert (gone.queue_time, gone.ttft, gone.chunks, gone.finish_reason) == (None, None, (), "abort")
    assert gone.decode == DecodeTiming()


def test_failed_requests_keep_their_error() -> None:
    bench = Timed()
    bench.runner.raises = [ValueError("boom")]
    bench.add("a")
    bench.run()
    assert (bench.of("a").finish_reason, bench.of("a").error) == ("error", "the step failed: ValueError: boom")


def test_old_requests_and_old_steps_are_forgotten() -> None:
    recorder = TimelineRecorder(max_requests=2, max_steps=4)
    bench = Timed(recorder=recorder)
    for name in "abc":
        bench.add(name, max_tokens=2)
        bench.run()
    assert [bench.core.timeline(name) is not None for name in "abc"] == [False, True, True]
    bench.add("long", max_tokens=40)
    bench.run()
    assert bench.of("long").chunks == ()
    assert 4 <= bench.of("long").decode.num_steps < 8
    assert len(recorder._steps) < 8
    assert (recorder._traces, recorder._open) == ({}, {})


def test_without_a_recorder_nothing_is_kept() -> None:
    bench = Bench()
    bench.add("a")
    bench.run()
    assert bench.core.timeline("a") is None


def test_a_request_that_waited_at_the_door_counts_from_its_arrival() -> None:
    bench = Timed()
    bench.clock.now = 10.0
    item = GenerationRequest("a", (1, 2, 3), SamplingParams(max_tokens=1), timeout=5.0)
    bench.core.add(item, arrival=7.0)
    bench.outputs["a"] = RequestOutput.empty("a", None, item.prompt_token_ids)
    bench.run()
    timeline = bench.core.timeline("a")
    assert timeline is not None
    assert (timeline.arrival, timeline.completions[0].queue_time) == (997.0, 3.5)
    bench.core.add(item, arrival=7.0)
    bench.outputs["a"] = RequestOutput.empty("a", None, item.prompt_token_ids)
    bench.clock.now = 12.0
    bench.run()
    assert bench.of("a").finish_reason == "deadline"
