"""Offline benchmarks and single steps, on a tiny model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from slipstream.bench.micro import measure_native, measure_plain
from slipstream.bench.offline import Shape, measure_latency, measure_throughput, offline_result, token_prompts
from slipstream.bench.op_work import NotedProgram
from slipstream.bench.steps import Step, step_batch
from slipstream.bench.workload import parse_lengths
from slipstream.engine.llm import LLM
from slipstream.errors import ContextLengthError
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.graph import Graph
from slipstream.kernels.cpu.lower import lower
from slipstream.kernels.cpu.native import ThreadPool, kernel_sets
from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.weights.open import open_checkpoint
from tests.native.packed import given
from tests.native.test_experts import Layer


@pytest.fixture(scope="module")
def llm(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    with LLM(str(tiny_folder), num_threads=1, cache_dir=tmp_path_factory.mktemp("cache"), weight_cache=False) as llm:
        yield llm


def silent(text: str) -> None:
    pass


def test_throughput_counts_every_token_of_every_round(llm: LLM) -> None:
    before = llm.stats()
    [case] = measure_throughput(llm, parse_lengths("8:4,16:8,24:2"), 7, 2, say=silent)
    after = llm.stats()
    assert case.name == "7 requests, 104 + 32 tokens"
    assert after.num_output_tokens - before.num_output_tokens == 3 * 32
    assert after.num_prompt_tokens - before.num_prompt_tokens == 3 * 104
    assert after.num_cached_tokens == before.num_cached_tokens
    assert {len(values) for values in case.rounds.values()} == {2}
    for rate, every, seconds in zip(*case.rounds.values(), strict=True):
        assert rate * seconds == pytest.approx(32)
        assert every * seconds == pytest.approx(136)
    assert case.summary["seconds"].value == pytest.approx(np.mean(case.rounds["seconds"]))


def test_latency_of_a_batch(llm: LLM) -> None:
    cases = measure_latency(llm, [Shape(1, 12, 1), Shape(3, 12, 5)], 2, say=silent)
    assert [case.name for case in cases] == ["batch 1, 12 + 1 tokens", "batch 3, 12 + 5 tokens"]
    assert set(cases[0].rounds) == {"ttft", "e2e"}
    assert set(cases[1].rounds) == {"ttft", "tpot", "e2e", "decode tokens/s"}
    for tpot, rate in zip(cases[1].rounds["tpot"], cases[1].rounds["decode tokens/s"], strict=True):
        assert tpot * rate == pytest.approx(3)
    result = offline_result("latency", llm, cases, name="n", model="m", settings={})
    assert result.in_force["backend"] == "cpu"
    assert result.peak_memory > 10**6


def test_what_does_not_fit_is_refused_before_any_work(llm: LLM) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(ContextLengthError, match="250 tokens and max_tokens asks for 7"):
        measure_latency(llm, [Shape(1, 4, 4), Shape(1, 250, 7)], 1, say=silent)
    with pytest.raises(ContextLengthError):
        measure_throughput(llm, parse_lengths("250:7"), 1, 1, say=silent)
    assert llm.stats().num_steps == steps


def test_prompts_are_ordinary_tokens_of_exact_lengths(llm: LLM) -> None:
    prompts = token_prompts(llm, [1, 5, 200], random.Random(0))
    assert [len(prompt) for prompt in prompts] == [1, 5, 200]
    assert llm.tokenizer.special_ids.isdisjoint({token for prompt in prompts for token in prompt})
    assert token_prompts(llm, [200], random.Random(1)) != token_prompts(llm, [200], random.Random(2))


def test_a_step_by_op(tiny_folder: Path) -> None:
    kernels, pool = cpu_kernels(1), ThreadPool(1)
    checkpoint = open_checkpoint(tiny_folder)
    try:
        model = load_model(checkpoint, kernels, max_position=64)
    finally:
        checkpoint.close()
    step = Step("decode 2 at 20", 2, 20, 1)
    result = measure_native(model, kernels, pool, step, 0.01)
    ops = {op.name: op for op in result.ops}
    config = model.config
    assert (result.num_tokens, result.steps >= 3) == (2, True)
    assert sum(op.seconds for op in result.ops) == pytest.approx(result.floor)
    assert ops["attention"].count == config.num_layers
    assert ops["attention"].macs == config.num_layers * 2 * 2 * 21 * config.num_heads * config.head_dim
    kv_bytes = 2 * config.num_kv_heads * config.head_dim * 2
    assert ops["attention"].num_bytes == config.num_layers * kv_bytes * (2 * 21 + 2)
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    per_layer = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size)
    head = config.hidden_size * config.vocab_size
    products = sum(op.macs or 0 for name, op in ops.items() if name.startswith("linear"))
    assert products == 2 * (config.num_layers * per_layer + head)
    assert all(op.read_share is not None for name, op in ops.items() if name.startswith("linear"))
    assert ops["token"].num_bytes is None
    assert result.ceilings is not None
    assert min(result.ceilings.read, result.ceilings.maddubs, result.ceilings.fma) > 0


def test_a_step_of_the_reference_backend_has_times_only(tiny_folder: Path) -> None:
    kernels = select_kernels("reference", num_threads=1)
    checkpoint = open_checkpoint(tiny_folder)
    try:
        model = load_model(checkpoint, kernels, max_position=64)
    finally:
        checkpoint.close()
    result = measure_plain(model, kernels, Step("prefill 16", 1, 0, 16), 0.01)
    assert (result.ops, result.floor, result.ceilings) == ((), None, None)
    assert 0 < result.best <= result.median


@pytest.mark.fast
def test_attention_within_a_window_reads_and_multiplies_less() -> None:
    program = NotedProgram(ThreadPool(1), kernel_sets()[0])
    rows = [program.add_rows(0, columns) for columns in (64, 32, 32, 64)]
    cache = np.zeros(64 * 16 * 2 * 2 * 16, np.uint16)
    arguments = ((rows[0], 0), (rows[1], 0), (rows[2], 0), (rows[3], 0), -1, (None, 0.0, None), (None, 0.0, None))
    for window in (0, 8):
        program.attention(4, 2, 16, 1.0, window, 0.0, *arguments, "float16", 16, 64, cache)
    whole, windowed = (work(step_batch(Step("", 1, 10, 3), 100)) for work in program.works if work is not None)
    assert whole.macs == 2 * 4 * 16 * (11 + 12 + 13)
    assert windowed.macs == 2 * 4 * 16 * (8 + 8 + 8)
    assert whole.num_bytes == 2 * 2 * 16 * 2 * (13 + 3)
    assert windowed.num_bytes == 2 * 2 * 16 * 2 * (10 + 3)


@pytest.mark.fast
def test_experts_multiply_for_each_token_and_are_read_once() -> None:
    kernels = cpu_kernels(1)
    x, batch = given(kernels, np.ones((3, 64), np.float32))
    logits, _ = given(kernels, np.eye(3, 4, dtype=np.float32))
    layer = Layer(4, 64, 96, ("Q8_0", "Q8_0", "Q8_0"))
    experts = layer.bound(kernels)
    routed = kernels.moe_experts(x, kernels.moe_route(logits, 2, True), experts, "silu")
    noted = NotedProgram(ThreadPool(1), kernel_sets()[0])
    lower(Graph(cast(Any, routed)), cast(Any, noted))
    counted = [work(batch) for work in noted.works if work is not None]
    [work] = [each for each in counted if each.macs]
    num_bytes = sum(each.packed.nbytes for each in experts[0])
    assert (work.macs, work.unit) == (3 * 2 * 3 * 64 * 96, "maddubs")
    assert work.num_bytes == pytest.approx(num_bytes * 4 * (1 - 0.5**3))


@pytest.mark.fast
def test_batches_of_steps() -> None:
    batch = step_batch(Step("", 3, 20, 1), 50)
    assert batch.positions.tolist() == [20] * 3
    assert batch.logits_rows.tolist() == [0, 1, 2]
    assert len(np.unique(batch.slots)) == 3
    assert batch.block_table.tolist() == [[0, 1], [2, 3], [4, 5]]
    prefill = step_batch(Step("", 2, 0, 20), 50)
    assert prefill.logits_rows.tolist() == [19, 39]
    assert prefill.query_start.tolist() == [0, 20, 40]
    assert step_batch(Step("", 1, 5, 8), 50).logits_rows.tolist() == list(range(8))
