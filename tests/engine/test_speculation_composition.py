"""Speculation among prompts in chunks, cached prefixes, preemptions, log-probabilities and quantised weights: never
another token, and never another probability."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from replay import Replay, always, ngrams
from tiny_engine import BACKENDS, MAX_MODEL_LEN, TinyEngine, _values, backend_kernels, family_of, spell, tiny_config

from slipstream import SamplingParams
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.queue import PriorityOrder
from slipstream.kernels.table import Weight
from slipstream.models.build import build_model
from slipstream.models.family import Model
from slipstream.sampling.grammar.spec import GrammarSpec

_RNG = random.Random(5)
PROMPT = tuple(_RNG.randrange(99) for _ in range(11))
OTHER = tuple(_RNG.randrange(99) for _ in range(30))
LOOP = (7, 8, 9, 10, 11, 12) * 4
KINDS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=24, logprobs=3),
    "seeded": SamplingParams(temperature=1.2, top_p=0.95, max_tokens=24, seed=3, logprobs=3),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=KINDS)
def params(request: pytest.FixtureRequest) -> SamplingParams:
    return KINDS[request.param]


def plain(backend: str, prompt: tuple[int, ...], params: SamplingParams) -> RequestOutput:
    [output] = TinyEngine(backend=backend).answer([(prompt, params)])
    return output


def whole(output: RequestOutput) -> list[int]:
    return [*output.prompt_token_ids, *output.outputs[0].token_ids]


def same(ours: RequestOutput, expected: RequestOutput) -> None:
    assert ours.prompt_logprobs == expected.prompt_logprobs
    for a, b in zip(ours.outputs, expected.outputs, strict=True):
        assert (a.token_ids, a.logprobs, a.cumulative_logprob) == (b.token_ids, b.logprobs, b.cumulative_logprob)
        assert (a.text, a.finish_reason, a.stop_reason) == (b.text, b.finish_reason, b.stop_reason)


def test_a_prompt_in_chunks_beside_drafts(backend: str, params: SamplingParams) -> None:
    expected = {"a": plain(backend, PROMPT, params), "b": plain(backend, OTHER, params)}
    drafter = Replay({name: whole(output) for name, output in expected.items()}, wrong=0.3)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 3), max_num_batched_tokens=9)
    engine.add("a", PROMPT, params)
    engine.step()
    engine.step()
    engine.add("b", OTHER, params)
    engine.run()
    for name, output in expected.items():
        same(engine.outputs[name], output)
    chunks = [row for row in engine.runner.rows("b") if not row.samples]
    beside = [plan for plan in engine.runner.plans if {row.request_id for row in plan.rows} == {"a", "b"}]
    assert chunks
    assert any(row.num_draft and other in chunks for plan in beside for row in plan.rows for other in plan.rows)


def test_the_prefix_cache_holds_no_refused_draft(backend: str, params: SamplingParams) -> None:
    """The second prompt goes on where the first answer did, over blocks into which wrong drafts had been written."""
    first = plain(backend, PROMPT, params)
    longer = (*whole(first)[:27], *OTHER[:5])
    expected = plain(backend, longer, params)
    answers = {"r0": whole(first), "r1": whole(expected)}
    engine = TinyEngine(backend=backend, caching=True, drafts=always(Replay(answers, wrong=0.5), 4))
    [ours] = engine.answer([(PROMPT, params)])
    same(ours, first)
    stats = engine.core.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    [again] = engine.answer([(longer, params)])
    same(again, expected)
    completion = again.outputs[0].stats
    assert completion is not None
    assert completion.num_cached_tokens >= 24  # beyond the prompt: a part of the answer


def test_preemption_in_the_middle_of_a_draft(backend: str, params: SamplingParams) -> None:
    """A more important request takes the blocks of one whose draft waits to be verified."""
    long = replace(params, max_tokens=70)
    expected = {"a": plain(backend, PROMPT, long), "b": plain(backend, OTHER, params)}
    drafter = Replay({name: whole(output) for name, output in expected.items()}, wrong=0.2)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 4), num_blocks=21, policy=PriorityOrder())
    engine.add("a", PROMPT, long, priority=1)
    for _ in range(3):
        engine.step()
    engine.add("b", OTHER, params, priority=0)
    engine.run()
    for name, output in expected.items():
        same(engine.outputs[name], output)
    rows = engine.runner.rows("a")
    restart = next(i for i in range(1, len(rows)) if rows[i].start < rows[i - 1].start)
    assert any(row.num_draft for row in rows[:restart])
    assert any(row.num_draft for row in rows[restart + 1 :])
    assert engine.core.stats().num_preemptions > 0


def test_log_probabilities_of_several_completions(backend: str) -> None:
    params = SamplingParams(temperature=1.3, max_tokens=16, seed=3, n=3, logprobs=5, prompt_logprobs=2)
    expected = plain(backend, LOOP, params)
    names = ("r0", "r0/1", "r0/2")
    answers = {name: [*LOOP, *each.token_ids] for name, each in zip(names, expected.outputs, strict=True)}
    engine = TinyEngine(backend=backend, drafts=always(Replay(answers, wrong=0.3), 4))
    [output] = engine.answer([(LOOP, params)])
    same(output, expected)
    stats = engine.core.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_drafts_that_a_grammar_forbids(backend: str) -> None:
    """N-grams propose what was in the prompt; the grammar allows other tokens, and sometimes the same."""
    grammar = GrammarSpec.regex(f"[{spell([8])}-{spell([11])}]+")
    for temperature in (0.0, 1.5):
        params = SamplingParams(temperature=temperature, seed=2, max_tokens=24, grammar=grammar, logprobs=2)
        engine = TinyEngine(backend=backend, drafts=ngrams(num_tokens=4))
        [output] = engine.answer([(LOOP, params)])
        same(output, plain(backend, LOOP, params))
        stats = engine.core.stats()
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_an_end_that_a_grammar_makes_inside_a_draft(backend: str) -> None:
    grammar = GrammarSpec.regex(f"[{spell([1])}-{spell([90])}]{{4}}")
    params = SamplingParams(temperature=0.0, max_tokens=24, grammar=grammar)
    expected = plain(backend, PROMPT, params)
    drafter = Replay({"r0": [*whole(expected), 5, 5, 5, 5]}, wrong=0.0)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 4))
    [output] = engine.answer([(PROMPT, params)])
    same(output, expected)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (4, "stop")
    last = engine.runner.rows("r0")[-1]
    assert last.start + len(last.tokens) > len(PROMPT) + 4, "no draft reached beyond the end"


def test_an_abort_between_the_draft_and_its_step_frees_everything(backend: str) -> None:
    drafter = Replay({"a": whole(plain(backend, PROMPT, KINDS["greedy"]))}, wrong=0.0)
    engine = TinyEngine(backend=backend, drafts=always(drafter, 4))
    for steps in range(1, 5):
        engine.add("a", PROMPT, KINDS["greedy"])
        for _ in range(steps):
            engine.step()
        engine.abort("a")
        assert not engine.core.has_work
        assert engine.core.stats().kv_blocks_used == 0
        assert not drafter.open_sequences


@cache
def quantised(backend: str) -> Model:
    """The tiny Llama with matrices in Q4_1, as the backend holds them."""
    kernels, family, config = backend_kernels(backend), family_of("LlamaForCausalLM"), tiny_config("LlamaForCausalLM")
    generator = np.random.default_rng(0)
    kind = GGMLQuantizationType.Q4_1

    def bound(name: str, shape: tuple[int, ...]) -> Weight:
        values = _values(generator, shape)
        if len(shape) != 2 or shape[1] % 32:
            return kernels.bind(name, values)
        data = quantize(values, kind)
        stored = None if kernels.bind_stored is None else kernels.bind_stored(name, "Q4_1", shape, data.reshape(-1))
        return kernels.bind(name, dequantize(data, kind)) if stored is None else stored

    weights = {slot.name: bound(slot.kind, slot.shape) for slot in family.slots(config)}
    return build_model(family, config, weights, kernels, max_position=MAX_MODEL_LEN)


def test_a_quantised_target(backend: str, params: SamplingParams) -> None:
    model = quantised(backend)
    prompts = [PROMPT, LOOP, OTHER]
    expected = TinyEngine(model, backend=backend).alone([(prompt, params) for prompt in prompts])
    answers = {f"r{i}": whole(output) for i, output in enumerate(expected)}
    for drafts in (always(Replay(answers, wrong=0.3), 4), ngrams(num_tokens=5)):
        engine = TinyEngine(model, backend=backend, drafts=drafts)
        for ours, theirs in zip(engine.answer([(prompt, params) for prompt in prompts]), expected, strict=True):
            same(ours, theirs)
        assert engine.core.stats().num_draft_tokens > 0
    if backend == "cpu":
        assert whole(expected[0]) != whole(plain(backend, PROMPT, params)), "the weights are not quantised"


def test_a_long_prompt_does_not_change_the_acceptance_of_a_short_one_in_its_place(backend: str) -> None:
    params = KINDS["greedy"]
    answers = {"r0": whole(plain(backend, OTHER * 3, params)), "r1": whole(plain(backend, LOOP, params))}
    found = []
    for before in (True, False):
        name = "r1" if before else "r0"
        engine = TinyEngine(
            backend=backend,
            max_num_seqs=1,
            num_blocks=32,
            drafts=always(Replay({name: answers["r1"]} | ({"r0": answers["r0"]} if before else {}), wrong=0.0), 4),
        )
        if before:
            engine.answer([(OTHER * 3, params)])
        [output] = engine.answer([(LOOP, params)])
        stats = output.outputs[0].stats
        assert stats is not None
        found.append((stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, output.outputs[0].token_ids))
    assert found[0] == found[1]
