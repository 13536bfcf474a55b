"""Grammars in the sampler and the engine: drafts, parameters, ends, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream import LLM, SamplingParams
from slipstream.engine.plan import RowSampling
from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState
from slipstream.sampling.sampler import SampledRow, SampleRow, sample_rows
from tests.sampling.grammar.tiny_vocabulary import EOS, VOCAB_SIZE, shared_compiler, text_of

SCHEMA = GrammarSpec.json_schema(
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
)


def draw(params: SamplingParams, output: tuple[int, ...], drafts: tuple[int, ...], logits: np.ndarray) -> SampledRow:
    assert params.grammar is not None
    state = GrammarState(shared_compiler().compile(params.grammar))

    def at() -> GrammarState:
        state.sync(output)
        return state

    context = RowSampling(params, 5, 2, EOS, output=output, history=(1, 2, *output), max_tokens=params.max_tokens)
    [row] = sample_rows(logits, [SampleRow(context, 2 + len(output), drafts, at)])
    return row


@pytest.mark.fast
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [14, 60])
def test_drafts_give_what_decoding_gives(temperature: float, budget: int) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=budget, grammar=SCHEMA, frequency_penalty=0.1)
    logits = np.random.default_rng(3).standard_normal((budget, VOCAB_SIZE)).astype(np.float32)
    output: tuple[int, ...] = ()
    complete = False
    while len(output) < budget and not complete:
        row = draw(params, output, (), logits[len(output)][None])
        assert row.error is None
        output += row.tokens
        complete = row.complete or output[-1] in EOS
    assert complete
    json.loads(text_of(list(output)))
    more = np.zeros((3, VOCAB_SIZE), np.float32)
    drafted = draw(params, (), (*output, 97, 97), np.concatenate([logits[: len(output)], more]))
    assert drafted.tokens == output
    wrong = (*output[:3], 98 if output[3] != 98 else 99)
    assert draw(params, (), wrong, logits[:5]).tokens == output[:4]


@pytest.mark.fast
def test_a_row_whose_grammar_and_parameters_contradict_fails_alone() -> None:
    spec = GrammarSpec.choice(["abc"])
    params = SamplingParams(temperature=0.0, max_tokens=9, grammar=spec, allowed_token_ids=[ord("z")])
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    forbidden = draw(params, (), (), logits)
    assert "forbid every token" in (forbidden.error or "")
    assert forbidden.error_kind is None
    wrong = draw(replace(params, allowed_token_ids=()), (ord("z"),), (), logits)
    assert "choice: the grammar does not allow" in (wrong.error or "")
    assert wrong.error_kind == "grammar"


@pytest.fixture(scope="module")
def llm(tiny_folder: Path):  # type: ignore[no-untyped-def]
    with LLM(str(tiny_folder), num_threads=1, num_blocks=64, weight_cache=False) as made:
        yield made


def test_answers_of_a_batch_keep_each_to_its_own_grammar(llm: LLM) -> None:
    specs = [SCHEMA, GrammarSpec.choice(["yes", "no"]), GrammarSpec.regex("[0-9]{3}"), GrammarSpec.json_object()]
    params = [SamplingParams(seed=i, max_tokens=60, grammar=spec) for i, spec in enumerate(specs)]
    outputs = [output.outputs[0] for output in llm.generate(["Hello"] * 4, params)]
    assert {"a", "b"} <= json.loads(outputs[0].text).keys()
    assert outputs[1].text in ("yes", "no")
    assert len(outputs[2].text) == 3
    assert outputs[2].text.isdigit()
    assert isinstance(json.loads(outputs[3].text), dict)
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert outputs[1].stop_reason is None


def test_a_complete_answer_ends_whatever_min_tokens_and_ignore_eos_say(llm: LLM) -> None:
    spec = GrammarSpec.choice(["yes", "no"])
    params = SamplingParams(temperature=0.0, max_tokens=40, min_tokens=20, ignore_eos=True, grammar=spec)
    [output] = llm.generate(["Hello"], params)
    assert output.outputs[0].text in ("yes", "no")
    assert output.outputs[0].finish_reason == "stop"


def test_min_tokens_and_ignore_eos_keep_an_answer_open_that_may_go_on(llm: LLM) -> None:
    spec = GrammarSpec.regex("a+")
    [short] = llm.generate(["Hello"], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, grammar=spec))
    assert len(short.outputs[0].token_ids) == 12
    assert set(short.outputs[0].text) == {"a"}
    [longer] = llm.generate(["Hello"], SamplingParams(seed=1, max_tokens=12, min_tokens=7, grammar=spec))
    assert len(longer.outputs[0].token_ids) >= 7


def test_a_grammar_that_takes_too_long_ends_its_own_request_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.sampling.grammar.state.SECONDS_AT_START", 0.0)
    monkeypatch.setattr("slipstream.sampling.grammar.state.SECONDS_PER_TOKEN", 0.0)
    plain = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    slow, other = llm.generate(["Hello", "You"], [replace(plain, grammar=GrammarSpec.regex("a+")), plain])
    assert slow.outputs[0].finish_reason == "error"
    assert "of processor time" in (slow.outputs[0].error or "")
    assert slow.outputs[0].error_kind == "grammar"
    assert (other.outputs[0].finish_reason, len(other.outputs[0].token_ids)) == ("length", 6)


def test_a_bad_grammar_is_refused_before_any_work(llm: LLM) -> None:
    bad = SamplingParams(grammar=GrammarSpec.json_schema({"type": "nothing"}))
    with pytest.raises(InvalidParamsError, match="json_schema: cannot be used"):
        llm.generate(["Hello", "You"], [SamplingParams(), bad])
    assert llm.stats().num_running == llm.stats().num_waiting == 0
