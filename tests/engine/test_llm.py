"""LLM on a tiny model folder: everything a script can do with it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.tiny_folder import write_tiny_folder

from slipstream import LLM, EngineOptions, RequestOutput, SamplingParams
from slipstream.engine.admission import RequestTooLargeError
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.errors import ChatTemplateError, ConfigError, ContextLengthError, EngineError, InvalidParamsError

pytestmark = pytest.mark.fast

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make(folder: Path, **settings: object) -> LLM:
    return LLM(str(folder), **({"num_threads": 1, "num_blocks": 64, "max_num_seqs": 4} | settings))


@pytest.fixture
def llm(tiny_folder: Path) -> Iterator[LLM]:
    """Closed after the test, when nothing may be left of its requests."""
    with make(tiny_folder) as llm:
        yield llm
        llm._core.check_integrity()
        assert (llm.stats().kv_blocks_used, llm._mailbox, list(llm._core.open_request_ids)) == (0, {}, [])


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in outputs]


class TestGenerate:
    def test_text_and_ids_give_the_same_in_the_order_of_the_prompts(self, llm: LLM) -> None:
        texts = ["hello", "a longer prompt than that", "x"]
        outputs = llm.generate(texts, GREEDY)
        assert [output.prompt for output in outputs] == texts
        assert [list(output.prompt_token_ids) for output in outputs] == [llm.tokenizer.encode(t) for t in texts]
        assert all(output.finished and len(output.outputs[0].token_ids) == 6 for output in outputs)
        for output in outputs:
            assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
            [by_ids] = llm.generate([list(output.prompt_token_ids)], GREEDY)
            assert (by_ids.prompt, by_ids.outputs[0].text) == (None, output.outputs[0].text)

    def test_a_single_prompt_of_any_kind(self, llm: LLM) -> None:
        prompt = llm.tokenizer.encode("hello")
        kinds = ["hello", prompt, tuple(prompt), np.array(prompt), [np.array(prompt, np.int32)]]
        results = [llm.generate(kind, GREEDY) for kind in kinds]
        assert all(len(result) == 1 for result in results)
        assert len({tuple(result[0].outputs[0].token_ids) for result in results}) == 1
        assert all(type(token) is int for result in results for token in result[0].prompt_token_ids)
        assert llm.generate([]) == []

    def test_parameters_and_seeds_per_prompt(self, llm: LLM) -> None:
        params = [SamplingParams(max_tokens=length, seed=length, ignore_eos=True) for length in (1, 5, 9)]
        outputs = llm.generate(["a", "a", "a"], params)
        assert [len(each) for each in ids(outputs)] == [1, 5, 9]
        assert ids(outputs) == [ids(llm.generate("a", each))[0] for each in params]

    def test_without_parameters_the_answer_ends_with_the_context(self, llm: LLM) -> None:
        [output] = llm.generate("x" * 250, SamplingParams(ignore_eos=True))
        assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (6, "length")

    def test_more_prompts_than_may_queue(self, tiny_folder: Path) -> None:
        with make(tiny_folder, max_queued=2, max_num_seqs=2) as llm:
            outputs = llm.generate([f"{i}" for i in range(9)], GREEDY)
            assert ids(outputs) == [ids(llm.generate(f"{i}", GREEDY))[0] for i in range(9)]

    @pytest.mark.parametrize(
        ("prompts", "params", "error", "message"),
        [
            (["a", ""], GREEDY, InvalidParamsError, "request-1: the prompt is empty"),
            (["a", "x" * 256], GREEDY, ContextLengthError, "256 tokens, but the context holds 256"),
            (["a", "x" * 250], SamplingParams(max_tokens=7), ContextLengthError, "250 .* asks for 7, .* holds 256"),
            (["a", [300]], GREEDY, InvalidParamsError, "token id 300, but the vocabulary has 259"),
            (["a", [1.5]], GREEDY, InvalidParamsError, "a sequence of token ids"),
            (["a", 7], GREEDY, InvalidParamsError, "a sequence of token ids, not 7"),
            (["a", b"abc"], GREEDY, InvalidParamsError, "a sequence of token ids, not b'abc'"),
            (b"abc", GREEDY, InvalidParamsError, "a sequence of token ids, not b'abc'"),
            ([{1, 2}], GREEDY, InvalidParamsError, "a sequence of token ids, not {1, 2}"),
            ({"prompt": "a"}, GREEDY, InvalidParamsError, "a sequence of token ids, not {'prompt': 'a'}"),
            (None, GREEDY, InvalidParamsError, "a sequence of token ids, not None"),
            (["a", "b"], [GREEDY], InvalidParamsError, "1 sampling_params for 2 prompts"),
            (["a"], {"max_tokens": 1}, InvalidParamsError, "sampling_params: must be SamplingParams or a list of them"),
            (["a"], [None], InvalidParamsError, "sampling_params: must be SamplingParams or a list of them"),
        ],
    )
    def test_bad_input_is_refused_before_any_work(
        self, llm: LLM, prompts: list[object], params: object, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            llm.generate(prompts, params)  # type: ignore[arg-type]
        assert llm.stats().num_steps == 0

    def test_what_can_never_run_is_refused_before_any_work(self, tiny_folder: Path) -> None:
        with make(tiny_folder, max_queued=3) as llm:
            with pytest.raises(RequestTooLargeError, match="n = 4"):
                llm.generate(["a", "b"], [GREEDY, SamplingParams(n=4)])
            assert llm.stats().num_steps == 0

    def test_priorities_need_the_policy(self, llm: LLM, tiny_folder: Path) -> None:
        with pytest.raises(InvalidParamsError, match='priority: has no effect with policy "fcfs"'):
            llm.generate(["a", "b"], GREEDY, priority=[1, 0])
        with make(tiny_folder, policy="priority", max_num_seqs=1) as other:
            outputs = other.generate(["a", "b", "c"], GREEDY, priority=[2, 1, 0])
            started = [output.outputs[0].stats.queue_time for output in outputs]
            assert started == sorted(started, reverse=True)
            with pytest.raises(InvalidParamsError, match="1 priorities for 3 prompts"):
                other.generate(["a", "b", "c"], GREEDY, priority=[1])

    def test_bad_words_are_banned_with_and_without_a_space_before(self, llm: LLM) -> None:
        [free] = llm.generate("hello", GREEDY)
        banned = [chr(token) for token in free.outputs[0].token_ids if 33 <= token < 127]
        word = llm.tokenizer.decode(free.outputs[0].token_ids[:1])
        [output] = llm.generate("hello", SamplingParams(temperature=0, max_tokens=6, bad_words=[word, *banned]))
        assert word not in output.outputs[0].text
        assert output.outputs[0].token_ids != free.outputs[0].token_ids

    def test_progress_is_shown_on_stderr(self, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
        llm.generate(["a", "b"], GREEDY, use_tqdm=True)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "2/2" in captured.err
        assert "12 tokens" in captured.err

    def test_logprobs(self, llm: LLM) -> None:
        [output] = llm.generate("hello", SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=0))
        completion = output.outputs[0]
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        assert [entry.rank for entry in completion.logprobs] == [1] * len(completion.token_ids)
        assert completion.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in completion.logprobs))
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        assert [e.token_id for e in output.prompt_logprobs[1:] if e] == list(output.prompt_token_ids[1:])


class TestStream:
    def test_adds_up_to_generate(self, llm: LLM) -> None:
        deltas = list(llm.stream("hello", GREEDY))
        [whole] = llm.generate("hello", GREEDY)
        assert [token for delta in deltas for token in delta.token_ids] == whole.outputs[0].token_ids
        assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
        assert [delta.finish_reason for delta in deltas] == [None] * 5 + ["length"]

    def test_progress_of_the_prompt_is_told_until_the_first_token(self, tiny_folder: Path) -> None:
        told: list[tuple[int, int]] = []
        with LLM(str(tiny_folder), num_threads=1, num_blocks=32, max_prefill_chunk=4) as llm:
            first = next(llm.stream(list(range(60, 70)), GREEDY, prompt_progress=lambda *done: told.append(done)))
            assert told == [(4, 10), (8, 10)]
            assert len(first.token_ids) == 1

    def test_two_streams_and_a_batch_in_turns(self, llm: LLM) -> None:
        long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        expected = dict(zip("abc", ids(llm.generate(["a", "b", "c"], long)), strict=True))
        streams = {name: llm.stream(name, long) for name in "ab"}
        got: dict[str, list[int]] = {"a": [], "b": []}
        for turn in range(40):
            name = "a" if turn % 3 else "b"
            got[name] += next(streams[name]).token_ids if len(got[name]) < 20 else ()
            if turn == 7:
                assert ids(llm.generate(["c", "a"], long)) == [expected["c"], expected["a"]]
        for name, stream in streams.items():
            got[name] += [token for delta in stream for token in delta.token_ids]
        assert got == {"a": expected["a"], "b": expected["b"]}

    def test_leaving_early_ends_the_request_and_not_the_other(self, llm: LLM) -> None:
        long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        left, other = llm.stream("a", long), llm.stream("b", GREEDY)
        next(left)
        next(other)
        left.close()
        assert llm.stats().num_running == 1
        list(other)
        assert llm.stats().num_steps < 20

    def test_is_checked_when_called(self, llm: LLM) -> None:
        with pytest.raises(InvalidParamsError, match="empty"):
            llm.stream("")

    def test_that_is_never_read_costs_nothing(self, llm: LLM) -> None:
        llm.stream("a", GREEDY)
        assert llm.stats().num_waiting == 0


class TestAsCompleted:
    def test_results_carry_their_keys_and_errors_harm_nobody(self, llm: LLM) -> None:
        items = [(f"k{i}", "x" * (300 if i == 2 else i + 1), GREEDY) for i in range(7)]
        results = dict(llm.generate_as_completed(iter(items), max_open=2))
        assert isinstance(results.pop("k2"), ContextLengthError)
        assert {key: ids([r])[0] for key, r in results.items() if isinstance(r, RequestOutput)} == {
            key: ids(llm.generate(prompt, params))[0] for key, prompt, params in items if key != "k2"
        }

    def test_no_more_are_open_than_allowed(self, llm: LLM) -> None:
        taken: list[int] = []
        done = 0

        def items() -> Iterator[tuple[int, str, SamplingParams]]:
            for i in range(8):
                assert len(taken) - done < 3
                taken.append(i)
                yield i, "a", GREEDY

        for _ in llm.generate_as_completed(items(), max_open=3):
            done += 1
        assert done == 8

    def test_leaving_early_ends_all_requests(self, llm: LLM) -> None:
        results = llm.generate_as_completed(((i, "a", GREEDY) for i in range(100)), max_open=4)
        next(results)
        results.close()

    def test_an_error_of_the_source_ends_all_requests(self, llm: LLM) -> None:
        def items() -> Iterator[tuple[int, str, SamplingParams]]:
            yield 0, "a", GREEDY
            raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            list(llm.generate_as_completed(items()))

    def test_leaving_after_close_is_silent(self, tiny_folder: Path) -> None:
        llm = make(tiny_folder)
        results = llm.generate_as_completed(((i, "a", GREEDY) for i in range(9)), max_open=2)
        next(results)
        llm.close()
        results.close()


def test_a_stream_that_is_collected_inside_a_step_ends_after_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(llm.generate("hello", GREEDY))
    stream = llm.stream("abc", GREEDY)
    next(stream)
    execute = llm._core._runner.execute
    left = []

    def leaving(plan: StepPlan) -> StepResult:
        if not left:
            stream.close()  # as the collector does with a stream that is part of a cycle
            left.append(set(llm._core.open_request_ids))
        return execute(plan)

    monkeypatch.setattr(llm._core, "_runner", SimpleNamespace(execute=leaving))
    assert ids(llm.generate("hello", GREEDY)) == expected
    assert [len(each) for each in left] == [2]


def test_threads_take_turns(llm: LLM) -> None:
    prompts = ["abc" * length for length in range(1, 7)]
    expected = ids(llm.generate(prompts, GREEDY))
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: [ids(llm.generate(prompts, GREEDY)) for _ in range(5)], range(4))
        assert list(answers) == [[expected] * 5] * 4


def test_interrupting_an_answer_stops_it_and_not_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the model computes."""
    runner = llm._core._runner
    expected = ids(llm.generate("hello", GREEDY))
    other = llm.stream("hello", GREEDY)
    first = next(other).token_ids
    steps = 0

    def interrupted(plan: StepPlan) -> StepResult:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return ModelRunnerExecute(runner, plan)

    from slipstream.engine.runner import ModelRunner

    ModelRunnerExecute = ModelRunner.execute  # noqa: N806
    monkeypatch.setattr(llm._core, "_runner", type("Runner", (), {"execute": staticmethod(interrupted)})())
    stream = llm.stream("abc", GREEDY)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert ids(llm.generate("hello", GREEDY)) == expected
    assert [*first, *(token for delta in other for token in delta.token_ids)] == expected[0]


class TestChat:
    MESSAGES = ({"role": "user", "content": "hi"},)

    def test_renders_the_template(self, llm: LLM) -> None:
        [output] = llm.chat(self.MESSAGES, GREEDY)
        rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert list(output.prompt_token_ids) == llm.tokenizer.encode(rendered)
        assert ids(llm.chat([self.MESSAGES, self.MESSAGES], GREEDY)) == ids([output, output])

    def test_what_is_no_conversation_is_refused(self, llm: LLM) -> None:
        for messages in (3, {"role": "user", "content": "hi"}):
            with pytest.raises(InvalidParamsError, match="messages: must be a list of messages"):
                llm.chat(messages)  # type: ignore[arg-type]
        with pytest.raises(InvalidParamsError, match="tools: must be a list of tools, not int"):
            llm.chat(self.MESSAGES, tools=3)  # type: ignore[arg-type]

    @pytest.mark.parametrize("extra", [{"messages": 1}, {"add_generation_prompt": False}, {"self": 1}, {1: 2}, 3])
    def test_names_for_the_template_that_are_taken_or_no_names(self, llm: LLM, extra: object) -> None:
        with pytest.raises(InvalidParamsError, match="chat_template_kwargs"):
            llm.chat(self.MESSAGES, GREEDY, chat_template_kwargs=extra)  # type: ignore[arg-type]

    def test_without_a_template(self, tmp_path: Path) -> None:
        with make(write_tiny_folder(tmp_path, chat_template=False)) as llm, pytest.raises(ChatTemplateError):
            llm.chat(self.MESSAGES, GREEDY)


def test_after_close_every_call_says_so(tiny_folder: Path) -> None:
    llm = make(tiny_folder)
    stream = llm.stream("a", GREEDY)
    next(stream)
    llm.close()
    llm.close()
    for act in (lambda: llm.generate("a"), lambda: llm.stream("a"), llm.stats, lambda: next(stream)):
        with pytest.raises(EngineError, match="closed"):
            act()


def test_unknown_and_contradicting_settings(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        make(tiny_folder, max_num_sequences=3)
    with pytest.raises(ConfigError, match="settings go into the EngineOptions"):
        LLM(EngineOptions.from_flat(model=str(tiny_folder)), block_size=4)


def test_options_in_the_place_of_a_model(tiny_folder: Path) -> None:
    settings = {"num_threads": 1, "block_size": 4, "num_blocks": 9, "max_model_len": 36}
    with LLM(EngineOptions.from_flat(model=str(tiny_folder), **settings)) as llm:
        effective = llm.plan.options
        assert (effective.block_size, effective.num_blocks, effective.max_model_len) == (4, 9, 36)
        assert {each.field for each in llm.decisions if each.overruled} == set()


def test_two_models_in_one_process(tiny_folder: Path, tmp_path: Path) -> None:
    with make(tiny_folder) as first, make(write_tiny_folder(tmp_path, seed=1)) as second:
        alone = ids(first.generate("hello", GREEDY)), ids(second.generate("hello", GREEDY))
        assert alone[0] != alone[1]
        streams = first.stream("hello", GREEDY), second.stream("hello", GREEDY)
        got: tuple[list[int], list[int]] = [], []
        for _ in range(6):
            for tokens, stream in zip(got, streams, strict=True):
                tokens += next(stream).token_ids
        assert [[got[0]], [got[1]]] == list(alone)
