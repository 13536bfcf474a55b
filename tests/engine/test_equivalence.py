"""However a request is batched, chunked, cached, preempted or placed in memory: exactly the same tokens.

Both backends compute a token's numbers bit by bit alike in any batch, so everything here is equality.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.hf_configs import TINY
from tiny_engine import BACKENDS, TinyEngine, tiny_model, tokens

from slipstream import LLM, SamplingParams
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.queue import PriorityOrder
from slipstream.models.registry import FAMILIES

pytestmark = pytest.mark.parametrize("backend", BACKENDS)

GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 1.3, "top_k": 40, "top_p": 0.97, "min_p": 0.001}
both = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])

Workload = list[tuple[list[int], SamplingParams]]


@cache
def _prompts() -> list[list[int]]:
    """Five prompts that share 10 tokens, and one that shares none."""
    rng = random.Random(7)
    shared = [rng.randrange(99) for _ in range(10)]
    prompts = [shared + [rng.randrange(99) for _ in range(length)] for length in (1, 3, 8, 13, 27)]
    return [*prompts, [rng.randrange(99) for _ in range(5)]]


def workload(sampling: dict[str, float], max_tokens: int = 8, **params: object) -> Workload:
    return [
        (prompt, SamplingParams(**({"max_tokens": max_tokens, "seed": 100 * i} | sampling | params)))  # type: ignore[arg-type]
        for i, prompt in enumerate(_prompts())
    ]


@cache
def _plain(backend: str, kind: str, max_tokens: int = 8) -> list[list[int]]:
    """Each alone, prompts whole, nothing cached, memory in plenty."""
    engine = TinyEngine(backend=backend, enable_chunked_prefill=False, max_num_seqs=1)
    answers = tokens(engine.alone(workload(GREEDY if kind == "greedy" else SEEDED, max_tokens)))
    assert all(len(plan.rows) == 1 for plan in engine.runner.plans)
    return answers


def plain(backend: str, sampling: dict[str, float], max_tokens: int = 8) -> list[list[int]]:
    return _plain(backend, "greedy" if sampling == GREEDY else "seeded", max_tokens)


@pytest.mark.fast
def test_the_answers_are_worth_comparing(backend: str) -> None:
    for sampling in (GREEDY, SEEDED):
        answers = plain(backend, sampling)
        assert len({tuple(answer) for answer in answers}) == len(answers)
        assert sum(len(set(answer)) for answer in answers) > 5 * len(answers)
    assert plain(backend, GREEDY) != plain(backend, SEEDED)


@pytest.mark.fast
@both
def test_alone_is_batched(backend: str, sampling: dict[str, float]) -> None:
    engine = TinyEngine(backend=backend)
    assert tokens(engine.answer(workload(sampling))) == plain(backend, sampling)
    assert max(len(plan.rows) for plan in engine.runner.plans) == 6


@both
@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 40])
def test_any_number_of_tokens_per_step(backend: str, sampling: dict[str, float], budget: int) -> None:
    engine = TinyEngine(backend=backend, max_num_batched_tokens=budget)
    assert tokens(engine.answer(workload(sampling))) == plain(backend, sampling)
    assert max(plan.num_tokens for plan in engine.runner.plans) == budget
    assert len(engine.runner.rows("r4")) > 8


@both
@pytest.mark.parametrize("chunk", [1, 5, 17])
def test_any_chunk_of_a_prompt(backend: str, sampling: dict[str, float], chunk: int) -> None:
    engine = TinyEngine(backend=backend, max_prefill_chunk=chunk)
    assert tokens(engine.answer(workload(sampling))) == plain(backend, sampling)
    assert max(len(row.tokens) for row in engine.runner.rows("r4")) == chunk


@both
@pytest.mark.parametrize("budget", [5, 256])
def test_a_prefix_hit_is_a_miss(backend: str, sampling: dict[str, float], budget: int) -> None:
    engine = TinyEngine(backend=backend, caching=True, max_num_batched_tokens=budget)
    for _ in range(2):
        outputs = engine.answer(workload(sampling))
        assert tokens(outputs) == plain(backend, sampling)
    cached = [output.outputs[0].stats.num_cached_tokens for output in outputs]  # type: ignore[union-attr]
    assert cached == [(len(prompt) - 1) // 4 * 4 for prompt in _prompts()]


@both
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("budget", [6, 256])
def test_after_preemption_is_without(backend: str, sampling: dict[str, float], caching: bool, budget: int) -> None:
    engine = TinyEngine(backend=backend, num_blocks=15, caching=caching, max_num_batched_tokens=budget)
    outputs = engine.answer(workload(sampling, max_tokens=20))
    assert tokens(outputs) == plain(backend, sampling, 20)
    assert engine.core.stats().num_preemptions > 0
    assert sum(output.outputs[0].stats.num_preemptions for output in outputs) > 0  # type: ignore[union-attr]


@both
@pytest.mark.parametrize("shuffle", [1, 2])
def test_shuffled_blocks_are_ordered_ones(backend: str, sampling: dict[str, float], shuffle: int) -> None:
    engine = TinyEngine(backend=backend, shuffle=shuffle, caching=True, max_num_batched_tokens=9)
    assert tokens(engine.answer(workload(sampling))) == plain(backend, sampling)
    used = [block for row in engine.runner.rows("r4")[-1:] for block in row.blocks]
    assert used != sorted(used)


@both
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_any_block_size(backend: str, sampling: dict[str, float], block_size: int) -> None:
    engine = TinyEngine(backend=backend, block_size=block_size, caching=True, max_num_batched_tokens=11)
    assert tokens(engine.answer(workload(sampling))) == plain(backend, sampling)


@both
def test_two_engines_step_by_step_in_turns(backend: str, sampling: dict[str, float]) -> None:
    other_model = tiny_model(seed=1, backend=backend)
    alone = tokens(TinyEngine(other_model, backend=backend).alone(workload(sampling)))
    engines = TinyEngine(backend=backend), TinyEngine(other_model, backend=backend, max_num_batched_tokens=9)
    for i, (prompt, params) in enumerate(workload(sampling)):
        for engine in engines:
            engine.add(f"r{i}", prompt, params)
    while any(engine.core.has_work for engine in engines):
        for engine in engines:
            engine.step()
    assert tokens(list(engines[0].outputs.values())) == plain(backend, sampling)
    assert tokens(list(engines[1].outputs.values())) == alone
    assert alone != plain(backend, sampling)


@pytest.mark.parametrize("caching", [False, True])
def test_completions_are_requests_of_their_own_with_the_next_seeds(backend: str, caching: bool) -> None:
    engine = TinyEngine(backend=backend, caching=caching, max_num_batched_tokens=16)
    together = engine.answer(workload(SEEDED, n=3))
    apart = TinyEngine(backend=backend, caching=False)
    for output, (prompt, params) in zip(together, workload(SEEDED), strict=True):
        values = {"max_tokens": 8, **SEEDED}
        seeds = [(params.seed or 0) + i for i in range(3)]
        single = apart.alone([(prompt, SamplingParams(seed=seed, **values)) for seed in seeds])  # type: ignore[arg-type]
        assert tokens([output]) == tokens(single)
        assert len({tuple(each.token_ids) for each in output.outputs}) == 3
    assert engine.kv.usage().shared_tokens > 0


def logprobs_of(outputs: list[RequestOutput]) -> list[object]:
    return [
        (output.prompt_logprobs, completion.logprobs, completion.cumulative_logprob)
        for output in outputs
        for completion in output.outputs
    ]


@both
@pytest.mark.parametrize(
    "engine_settings",
    [
        {},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"max_prefill_chunk": 3, "caching": True},
        {"num_blocks": 15, "max_num_batched_tokens": 13},
    ],
    ids=str,
)
def test_logprobs_are_the_same_to_the_last_bit(
    backend: str, sampling: dict[str, float], engine_settings: dict[str, int]
) -> None:
    length = 20 if "num_blocks" in engine_settings else 8
    requests = workload(sampling, length, logprobs=3, prompt_logprobs=2)
    expected = TinyEngine(backend=backend, enable_chunked_prefill=False).alone(requests)
    engine = TinyEngine(backend=backend, **engine_settings)  # type: ignore[arg-type]
    for _ in range(2):  # the second time with a warm cache, if there is one
        outputs = engine.answer(requests)
        assert tokens(outputs) == tokens(expected) == plain(backend, sampling, length)
        assert logprobs_of(outputs) == logprobs_of(expected)
    assert (engine.core.stats().num_preemptions > 0) == ("num_blocks" in engine_settings)
    assert all(len(output.prompt_logprobs or ()) == len(output.prompt_token_ids) for output in outputs)


@both
def test_logprobs_change_no_token(backend: str, sampling: dict[str, float]) -> None:
    assert tokens(TinyEngine(backend=backend).answer(workload(sampling, logprobs=0, prompt_logprobs=0))) == plain(
        backend, sampling
    )


@both
def test_through_a_folder_and_llm(backend: str, tiny_folder: Path, sampling: dict[str, float]) -> None:
    """Whole path from files on: tiny steps, small blocks and a warm cache against large ones without."""
    texts = ["hello", "hello there, all of you", "hello there", "quite another text"]
    params = [SamplingParams(max_tokens=20, seed=i, ignore_eos=True, **sampling) for i in range(4)]  # type: ignore[arg-type]
    plain_settings = {"enable_prefix_caching": False, "max_num_seqs": 1}
    tight = {"max_num_batched_tokens": 5, "block_size": 2, "num_blocks": 30, "max_model_len": 60, "max_num_seqs": 4}
    with LLM(str(tiny_folder), backend=backend, num_threads=1, **plain_settings) as llm:
        expected = [llm.generate(text, each)[0] for text, each in zip(texts, params, strict=True)]
    with LLM(str(tiny_folder), backend=backend, num_threads=1, **tight) as llm:
        for _ in range(2):
            outputs = llm.generate(texts, params)
            assert tokens(outputs) == tokens(expected)
            assert [each.outputs[0].text for each in outputs] == [each.outputs[0].text for each in expected]
        assert llm.stats().num_preemptions > 0
        assert llm.stats().num_cached_tokens > 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_random_workloads(backend: str, seed: int) -> None:
    """Arrivals, aborts and tiny pools: every request ends, with the tokens that it gets alone (or their beginning)."""
    rng = random.Random(seed)
    engine = TinyEngine(
        backend=backend,
        num_blocks=rng.randint(8, 24),
        caching=rng.random() < 0.6,
        shuffle=rng.choice([None, seed]),
        policy=rng.choice([None, PriorityOrder(5.0)]),
        max_num_batched_tokens=rng.choice([1, 4, 9, 64]),
        max_num_seqs=rng.randint(1, 5),
        max_prefill_chunk=rng.choice([None, 3]),
    )
    todo = []
    for i in range(rng.randint(2, 7)):
        prompt = rng.choice(_prompts())[: rng.randint(1, 20)]
        sampling = rng.choice([GREEDY, SEEDED])
        length, n = rng.randint(1, 8), rng.choice([1, 1, 3])
        values = {"max_tokens": length, "seed": rng.randrange(50), "n": n, "logprobs": rng.choice([None, 1])}
        extra = rng.choice([{}, {}, {"prompt_logprobs": 0}, {"presence_penalty": 1.5}, {"min_tokens": 1}])
        todo.append((f"r{i}", prompt, SamplingParams(**values, **sampling, **extra)))  # type: ignore[arg-type]
    requests = {name: (prompt, params) for name, prompt, params in todo}
    for _ in range(2000):
        if not todo and not engine.core.has_work:
            break
        if todo and rng.random() < 0.5:
            name, prompt, params = todo.pop(0)
            engine.add(name, prompt, params, priority=rng.randint(0, 3))
        if rng.random() < 0.04 and engine.outputs:
            engine.abort(rng.choice(list(engine.outputs)))
        engine.step()
    assert engine.outputs.keys() == requests.keys()
    assert engine.core.stats().kv_blocks_used == 0
    alone = TinyEngine(backend=backend, enable_chunked_prefill=False)
    for name, output in engine.outputs.items():
        [expected] = alone.alone([requests[name]])
        for got, right in zip(output.outputs, expected.outputs, strict=True):
            assert got.finish_reason in ("length", "abort")
            whole = right.token_ids if got.finish_reason == "length" else right.token_ids[: len(got.token_ids)]
            assert got.token_ids == whole
            assert got.logprobs == (None if not right.logprobs or not whole else right.logprobs[: len(whole)])


@pytest.mark.parametrize("architecture", sorted(name for family in FAMILIES for name in family.hf_architectures))
def test_every_family_under_pressure(backend: str, architecture: str) -> None:
    """Small chunks, a warm cache, preemption and shuffled blocks at once."""
    if architecture not in TINY:
        pytest.fail(f"{architecture} has no tiny configuration in tests/models/hf_configs.py")
    model = tiny_model(architecture, backend=backend)
    requests = workload(SEEDED, 14, prompt_logprobs=0)[::2] + workload(SEEDED, 14)[1::2]
    expected = TinyEngine(model, backend=backend, enable_chunked_prefill=False).alone(requests)
    engine = TinyEngine(model, backend=backend, num_blocks=14, caching=True, shuffle=3, max_num_batched_tokens=11)
    for _ in range(2):
        outputs = engine.answer(requests)
        assert tokens(outputs) == tokens(expected)
        assert logprobs_of(outputs) == logprobs_of(expected)
    stats = engine.core.stats()
    assert stats.num_preemptions > 0
    assert stats.num_cached_tokens > 0
