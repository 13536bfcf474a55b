"""EngineCore: what becomes of requests, whatever happens between their steps."""

from __future__ import annotations

from weakref import WeakValueDictionary

import pytest
from core_fakes import Bench, Letters, spell
from scheduling_fakes import logprob, sequential
from scheduling_loop import right

from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.plan import StepResult
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.queue import QueueFullError
from slipstream.errors import ContextLengthError, EngineError, InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast

PROMPT = (1, 2, 3)
ANSWER = sequential(PROMPT, 12)  # seed 0


def test_deltas_add_up_to_the_sequential_answer_and_its_text() -> None:
    bench = Bench(tokenizer=Letters())
    output = bench.add("a", max_tokens=5)
    bench.run()
    [completion] = output.outputs
    assert completion.token_ids == ANSWER[:5]
    assert completion.text == spell(ANSWER[:5])
    assert (completion.finish_reason, completion.stop_reason, completion.error) == ("length", None, None)
    assert len(bench.runner.plans) == 5


def test_times_and_counts_of_a_request() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("first", max_tokens=2)
    output = bench.add("second", max_tokens=3)
    bench.run()
    stats = output.outputs[0].stats
    assert stats is not None
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.num_preemptions) == (3, 3, 0)
    # Steps end at 1, 2 (first is over), 3, 4, 5 seconds.
    assert (stats.queue_time, stats.ttft, stats.tpot, stats.e2e) == (3.0, 3.0, 1.0, 5.0)


def test_totals_count_completions() -> None:
    bench = Bench()
    prompt = [i % 7 for i in range(9)]
    bench.add("a", prompt, n=3, max_tokens=2)
    bench.run()
    bench.add("b", prompt, max_tokens=1)
    bench.run()
    stats = bench.core.stats()
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.num_finished) == (36, 7, 4)
    assert stats.num_cached_tokens == 24  # two shared blocks for two children and for b
    assert stats.num_prompt_tokens - stats.num_cached_tokens == 9 + 3
    assert (stats.num_steps, stats.num_running, stats.num_waiting) == (len(bench.runner.plans), 0, 0)
    assert (stats.prefix_cache_hits, stats.kv_blocks_used) == (8, 0)


def test_an_idle_step_does_nothing() -> None:
    bench = Bench()
    assert bench.step() == []
    assert not bench.core.has_work
    assert bench.core.stats().num_steps == 0


class TestAbort:
    def test_ends_waiting_and_running_requests_once(self) -> None:
        bench = Bench(max_num_seqs=1)
        running, waiting = bench.add("running", max_tokens=9), bench.add("waiting")
        bench.step()
        for name in ("running", "waiting"):
            [delta] = bench.take(bench.core.abort(name))
            assert (delta.finish_reason, delta.token_ids) == ("abort", ())
            assert bench.core.abort(name) == []
        assert (running.outputs[0].token_ids, waiting.outputs[0].token_ids) == (ANSWER[:1], [])
        assert bench.core.abort("unknown") == []
        bench.run()

    def test_of_several_completions_leaves_out_those_that_are_over(self) -> None:
        bench = Bench(tokenizer=Letters())
        answers = [sequential(PROMPT, 9, seed) for seed in range(3)]
        stop = spell(answers[1][:1])
        assert all(spell(answer)[0] != stop for answer in (answers[0], answers[2]))
        output = bench.add("a", n=3, max_tokens=50, stop=stop)
        bench.step()
        bench.step()
        assert [each.finish_reason for each in output.outputs] == [None, "stop", None]
        assert [delta.index for delta in bench.take(bench.core.abort("a"))] == [0, 2]
        assert [each.finish_reason for each in output.outputs] == ["abort", "stop", "abort"]
        bench.run()

    def test_before_the_prompt_is_computed_ends_every_completion(self) -> None:
        bench = Bench(max_num_batched_tokens=4)
        output = bench.add("a", [1] * 10, n=3)
        bench.step()
        assert len(bench.take(bench.core.abort("a"))) == 3
        assert output.finished
        bench.run()

    def test_shows_text_that_was_held_back(self) -> None:
        bench = Bench(tokenizer=Letters())
        output = bench.add("a", max_tokens=9, stop=spell(ANSWER[:2]) + "z")
        bench.step()
        bench.step()
        assert output.outputs[0].text == ""
        bench.take(bench.core.abort("a"))
        assert output.outputs[0].text == spell(ANSWER[:2])


class TestIds:
    def test_are_free_again_after_the_end(self) -> None:
        bench = Bench()
        bench.add("a")
        with pytest.raises(InvalidParamsError, match="request a: a request with this id is running"):
            bench.add("a")
        bench.run()
        for _ in range(2):
            bench.add("a", max_tokens=9)
            bench.step()
            bench.take(bench.core.abort("a"))
        output = bench.add("a")
        bench.run()
        assert output.outputs[0].token_ids == ANSWER[:4]

    def test_of_completions_are_taken_while_these_run(self) -> None:
        bench = Bench()
        first = bench.add("a", n=2)
        with pytest.raises(InvalidParamsError, match="request a/1"):
            bench.add("a/1")
        bench.run()
        other = bench.add("a/1")
        with pytest.raises(InvalidParamsError, match="request a:"):
            bench.add("a", n=2)
        bench.run()
        assert first.finished
        assert other.outputs[0].token_ids == ANSWER[:4]


class TestDoor:
    def test_a_full_queue_takes_all_completions_or_none(self) -> None:
        bench = Bench(max_queued=3)
        bench.add("a")
        with pytest.raises(QueueFullError):
            bench.add("b", n=3)
        assert bench.core.stats().num_waiting == 1
        assert set(bench.core.open_request_ids) == {"a"}
        bench.step()
        bench.add("b", n=3)
        bench.run()
        assert bench.outputs["b"].finished

    def test_more_completions_than_may_ever_wait_are_refused_for_good(self) -> None:
        bench = Bench(max_queued=3)
        request = GenerationRequest("a", PROMPT, SamplingParams(n=4, max_tokens=2))
        for act in (bench.core.check, bench.core.add):
            with pytest.raises(RequestTooLargeError, match=r"n = 4 .* max_queued = 3"):
                act(request)

    def test_check_refuses_what_add_refuses_and_changes_nothing(self) -> None:
        bench = Bench(blocks=4, max_model_len=30)
        bad = [
            (RequestTooLargeError, (1,) * 10, {"max_tokens": 8}),
            (ContextLengthError, (1,) * 30, {}),
            (ContextLengthError, (1,) * 20, {"max_tokens": 11}),
            (InvalidParamsError, (), {}),
            (InvalidParamsError, (1, 7), {}),
            (InvalidParamsError, (1,), {"logit_bias": {7: 1.0}}),
            (InvalidParamsError, (1,), {"stop": "x"}),
            (InvalidParamsError, (1,), {"bad_words": "x"}),
        ]
        for error, prompt, params in bad:
            request = GenerationRequest("a", prompt, SamplingParams(**params))
            for act in (bench.core.check, bench.core.add):
                with pytest.raises(error):
                    act(request)
        assert not bench.core.has_work

    @pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
    def test_a_timeout_must_be_positive(self, timeout: float) -> None:
        with pytest.raises(InvalidParamsError, match="timeout"):
            Bench().add("a", timeout=timeout)

    def test_the_engines_seed_is_drawn_from_in_order_and_not_by_refused_requests(self) -> None:
        def answers(refuse: bool) -> list[list[int]]:
            bench = Bench(seed=5, max_queued=2, max_num_seqs=2)
            for name in "ab":
                bench.add(name, seed=None, max_tokens=8)
            if refuse:
                with pytest.raises(QueueFullError):
                    bench.add("c", seed=None)
            bench.step()
            bench.add("c", seed=None, n=2, max_tokens=8)
            bench.run()
            return [each.token_ids for name in "abc" for each in bench.outputs[name].outputs]

        calm = answers(refuse=False)
        assert len({tuple(each) for each in calm}) == 4
        assert answers(refuse=True) == calm


class TestDeadlines:
    def test_end_running_and_waiting_requests(self) -> None:
        bench = Bench(max_num_seqs=1)
        running, waiting = bench.add("a", max_tokens=50, timeout=2.5), bench.add("b", timeout=0.5)
        other = bench.add("c", max_tokens=2)
        bench.run()
        assert (waiting.outputs[0].finish_reason, waiting.outputs[0].token_ids) == ("deadline", [])
        assert (running.outputs[0].finish_reason, running.outputs[0].token_ids) == ("deadline", ANSWER[:2])
        assert other.outputs[0].finish_reason == "length"

    def test_of_the_only_request_is_told_although_no_step_follows(self) -> None:
        bench = Bench()
        output = bench.add("a", max_tokens=50, timeout=0.5)
        [delta] = bench.step()
        assert (delta.finish_reason, output.finished, bench.core.has_work) == ("deadline", True, False)

    def test_is_told_although_the_step_fails(self) -> None:
        bench = Bench()
        late = bench.add("a", max_tokens=50, timeout=0.5)
        failing = bench.add("b")
        bench.runner.raises = [ValueError("boom")]
        bench.run()
        assert late.outputs[0].finish_reason == "deadline"
        assert failing.outputs[0].finish_reason == "error"


class TestFailures:
    def test_of_a_step_end_its_requests_and_no_others(self) -> None:
        bench = Bench(max_num_seqs=1)
        failing, other = bench.add("a"), bench.add("b")
        bench.step()
        bench.runner.raises = [MemoryError("no more")]
        bench.step()
        [completion] = failing.outputs
        assert (completion.finish_reason, completion.token_ids) == ("error", ANSWER[:1])
        assert completion.error == "the step failed: MemoryError: no more"
        bench.run()
        assert other.outputs[0].token_ids == ANSWER[:4]

    def test_of_a_step_give_the_blocks_back_at_once(self) -> None:
        bench = Bench()
        bench.add("a", [1] * 10)
        bench.runner.raises = [ValueError("boom")]
        bench.step()
        assert (bench.core.stats().kv_blocks_used, bench.core.has_work) == (0, False)

    def test_of_a_parent_leave_its_children(self) -> None:
        bench = Bench(max_num_batched_tokens=4)
        output = bench.add("a", [1] * 10, n=3)
        bench.runner.raises = [ValueError("boom")]
        bench.run()
        assert [each.finish_reason for each in output.outputs] == ["error", "length", "length"]
        assert output.outputs[2].token_ids == sequential([1] * 10, 4, seed=2)

    def test_of_one_row_end_that_completion(self) -> None:
        bench = Bench()
        failing, other = bench.add("a"), bench.add("b")
        bench.runner.model.fail = lambda name: name == "a"
        bench.run()
        assert (failing.outputs[0].finish_reason, failing.outputs[0].error) == ("error", "boom")
        assert other.outputs[0].token_ids == ANSWER[:4]

    @pytest.mark.parametrize("after", [0, 2])
    def test_an_interrupted_step_is_taken_back(self, after: int) -> None:
        bench = Bench()
        output, other = bench.add("a", max_tokens=6), bench.add("b", max_tokens=6)
        bench.runner.raises = [None] * after + [KeyboardInterrupt()]
        for _ in range(after):
            bench.step()
        with pytest.raises(KeyboardInterrupt):
            bench.step()
        bench.core.check_integrity()
        late = bench.add("c")
        assert len(bench.take(bench.core.abort("b"))) == 1
        bench.run()
        assert output.outputs[0].token_ids == ANSWER[:6]
        assert other.outputs[0].finish_reason == "abort"
        assert late.outputs[0].token_ids == ANSWER[:4]

    def test_an_id_is_free_again_after_an_interrupted_step(self) -> None:
        bench = Bench()
        bench.add("a")
        bench.runner.raises = [KeyboardInterrupt()]
        with pytest.raises(KeyboardInterrupt):
            bench.step()
        bench.take(bench.core.abort("a"))
        bench.add("a")
        bench.run()

    def test_a_runner_that_answers_something_else_stops_the_engine(self) -> None:
        bench = Bench()
        bench.add("a")
        bench.runner.answer = lambda plan: StepResult(plan.step, ())
        with pytest.raises(EngineError, match="does not answer the step in flight"):
            bench.step()
        for act in (bench.core.step, lambda: bench.add("b")):
            with pytest.raises(EngineError, match="cannot go on"):
                act()
        assert bench.core.abort("a") == []


class TestStopStrings:
    def test_inside_a_multi_token_update_cut_tokens_and_logprobs(self) -> None:
        bench = Bench(tokenizer=Letters(), drafts=right(5))
        text = spell(ANSWER)
        at = next(i for i in range(2, 10) if text[i : i + 2] not in text[: i + 1])
        output = bench.add("a", max_tokens=12, stop=text[at : at + 2], logprobs=0)
        bench.run()
        [completion] = output.outputs
        assert (completion.text, completion.token_ids) == (text[:at], ANSWER[: at + 2])
        assert (completion.finish_reason, completion.stop_reason) == ("stop", text[at : at + 2])
        assert completion.logprobs == [logprob([*PROMPT, *ANSWER[:i]], ANSWER[i]) for i in range(at + 2)]
        assert completion.cumulative_logprob == pytest.approx(sum(each.logprob for each in completion.logprobs))
        assert completion.stats is not None
        assert completion.stats.num_output_tokens == bench.core.stats().num_output_tokens == at + 2
        assert len(bench.runner.plans) == 2, "the drafts were not accepted in one step"

    def test_completed_by_the_last_token_allowed(self) -> None:
        bench = Bench(tokenizer=Letters())
        output = bench.add("a", max_tokens=3, stop=spell(ANSWER[1:3]))
        bench.run()
        [completion] = output.outputs
        assert (completion.text, completion.finish_reason) == (spell(ANSWER[:1]), "stop")
        assert completion.stats is not None
        assert completion.stats.e2e == 3.0

    def test_that_begins_but_never_ends_is_shown(self) -> None:
        bench = Bench(tokenizer=Letters())
        output = bench.add("a", max_tokens=3, stop=spell(ANSWER[1:3]) + "zzz")
        bench.run()
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == (spell(ANSWER[:3]), "length")


def test_end_of_sequence_and_stop_tokens() -> None:
    eos = ANSWER[2]
    assert eos not in ANSWER[:2]
    bench = Bench(tokenizer=Letters(), eos=(eos,))
    plain = bench.add("a", max_tokens=9)
    ignoring = bench.add("b", max_tokens=9, ignore_eos=True)
    own = bench.add("c", max_tokens=9, stop_token_ids=[ANSWER[1]])
    bench.run()
    first, second, third = plain.outputs[0], ignoring.outputs[0], own.outputs[0]
    assert (first.token_ids, first.text, first.finish_reason, first.stop_reason) == (
        ANSWER[:3],
        spell(ANSWER[:2]),
        "stop",
        None,
    )
    assert (second.token_ids, second.finish_reason) == (ANSWER[:9], "length")
    assert (third.token_ids, third.text, third.stop_reason) == (ANSWER[:2], spell(ANSWER[:1]), ANSWER[1])


def test_prompt_logprobs_come_once_with_the_first_delta() -> None:
    bench = Bench(max_num_batched_tokens=4)
    prompt = [i % 7 for i in range(10)]
    output = bench.add("a", prompt, prompt_logprobs=0, n=2)
    given = []
    while bench.core.has_work:
        given += [(delta.index, len(delta.prompt_logprobs)) for delta in bench.step() if delta.prompt_logprobs]
    assert given == [(0, 10)]
    assert output.prompt_logprobs == [None, *(logprob(prompt[:i], prompt[i]) for i in range(1, 10))]


def test_two_cores_in_turns_do_not_touch_each_other() -> None:
    first, second = Bench(blocks=8), Bench(blocks=8)
    for bench, seed in ((first, 0), (second, 1)):
        for name in "abc":
            bench.add(name, max_tokens=6, seed=seed)
    while first.core.has_work or second.core.has_work:
        first.step()
        second.step()
    assert all(output.outputs[0].token_ids == ANSWER[:6] for output in first.outputs.values())
    expected = sequential(PROMPT, 6, seed=1)
    assert all(output.outputs[0].token_ids == expected for output in second.outputs.values())


def test_bad_words_are_tokenised_as_written_and_behind_a_space() -> None:
    class Spaced(Letters):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return [6 if letter == " " else ord(letter) - ord("a") for letter in text]

    bench = Bench(tokenizer=Spaced())
    bench.add("a", bad_words=["bc", " d", "  "], bad_words_ids=[[4]])
    bench.step()
    [row] = bench.runner.plans[0].rows
    assert row.sampling.params.bad_words_ids == ((4,), (1, 2), (6, 1, 2), (3,), (6, 3), (6, 6))


def test_a_grammar_is_kept_while_its_request_is_open() -> None:
    """So that it is not compiled again within a step, however many others came meanwhile."""

    class Compiled:
        pass

    class Grammars:
        def compile(self, spec: GrammarSpec) -> Compiled:
            compiled = found.get(spec, Compiled())
            found[spec] = compiled
            return compiled

    found: WeakValueDictionary[GrammarSpec, Compiled] = WeakValueDictionary()
    bench = Bench()
    bench.core._grammars = Grammars()  # type: ignore[assignment]
    bench.add("a", grammar=GrammarSpec.regex("a"), n=2)
    bench.add("b", grammar=GrammarSpec.regex("b"), max_tokens=1)
    assert len(found) == 2
    bench.step()
    assert list(found) == [GrammarSpec.regex("a")]
    bench.take(bench.core.abort("a"))
    assert not found


def test_the_progress_of_a_prompt_until_its_first_token() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add("a", prompt=range(7), max_tokens=3)
    seen = [bench.core.prompt_progress("a")]
    while bench.core.has_work:
        bench.step()
        seen.append(bench.core.prompt_progress("a"))
    assert seen == [(0, 7), (4, 7), None, None, None]
    assert bench.core.prompt_progress("b") is None
