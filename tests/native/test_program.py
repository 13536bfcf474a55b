"""Whole models: recorded and run natively, against the reference backend and against themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Gemma3TextConfig, LlamaConfig, MixtralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from slipstream.errors import ConfigError
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import ThreadPool
from slipstream.kernels.cpu.record import RecordedModel
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec, load_model
from slipstream.models.family import Model
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.harness import random_prompts, save, tiny_model
from tests.models.paged import PagedRunner, run_chunks, run_whole
from tests.native.packed import given, rounded, tokens

pytestmark = pytest.mark.fast
K = cpu_kernels(2)
REFERENCE = select_kernels("reference")
SIZES: dict[str, Any] = {
    "vocab_size": 77,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama odd": lambda: LlamaConfig(**{**SIZES, "hidden_size": 40, "intermediate_size": 50, "head_dim": 8}),
    "qwen2 tied": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=5),
    "qwen3 moe": lambda: Qwen3MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, decoder_sparse_step=2
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, query_pre_attn_scalar=20, sliding_window=9, sliding_window_pattern=2, final_logit_softcapping=3.0
    ),
}


def load(folder: Path, kernels: Kernels) -> Model:
    checkpoint = open_safetensors(folder)
    model = load_model(checkpoint, kernels, max_position=128)
    checkpoint.close()
    return model


@pytest.fixture(params=CONFIGS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model(CONFIGS[request.param]()), tmp_path_factory.mktemp("model"))


def test_dense_models_agree_with_the_reference_and_keep_their_bits(folder: Path) -> None:
    ours, reference = load(folder, K), load(folder, REFERENCE)
    prompt = random_prompts(77, [41])[0]
    whole = run_whole(PagedRunner(ours, K, block_size=8), "a", prompt)
    expected = run_whole(PagedRunner(reference, REFERENCE, block_size=8), "a", prompt)
    assert expected.std() > 0.1
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    for size, shuffle in ((1, None), (7, 1), (16, 2)):
        runner = PagedRunner(ours, K, block_size=4, shuffle=shuffle)
        np.testing.assert_array_equal(run_chunks(runner, "a", prompt, size), whole)


def recorded(model: Model, kernels: Kernels, **options: Any) -> PagedRunner:
    """A runner whose model was compiled for the runner's own cache."""
    runner = PagedRunner(model, kernels, **options)
    assert kernels.compile is not None
    runner._model = kernels.compile(model, runner.kv)  # type: ignore[assignment]
    return runner


def test_a_recorded_model_gives_what_its_ops_give_one_call_at_a_time(folder: Path) -> None:
    model = load(folder, K)
    prompts = random_prompts(77, [20, 1, 33, 8], seed=3)
    plain = PagedRunner(model, K, block_size=8)
    fast = recorded(model, K, block_size=8, shuffle=4)
    for step in (
        {"0": prompts[0], "1": prompts[1]},
        {"0": [5], "2": prompts[2]},
        {"0": [6], "1": [7], "2": [8], "3": prompts[3]},
    ):
        a, b = plain.step(step), fast.step(step)
        for name in step:
            np.testing.assert_array_equal(a[name], b[name])


def test_two_programs_in_one_process_do_not_meet(folder: Path) -> None:
    model, other = load(folder, K), load(folder, cpu_kernels(3))
    prompt = random_prompts(77, [17])[0]
    first, second = recorded(model, K), recorded(model, K, dtype="float16")
    third = recorded(other, cpu_kernels(3))
    a, _, c = (run_whole(each, "a", prompt) for each in (first, second, third))
    np.testing.assert_array_equal(run_chunks(recorded(model, K), "b", prompt, 3), a)
    np.testing.assert_array_equal(a, c)


def test_quantised_linear_inputs_are_the_only_difference() -> None:
    """The reference with activations rounded as the kernels round them, layer by layer."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 64)).astype(np.float32)
    norm = rng.standard_normal(64).astype(np.float32)
    tensor, _ = given(K, x)
    normed = K.rms_norm(tensor, K.bind("vector", norm), 1e-5)
    values = K.to_numpy(normed)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)
    identity = np.zeros((64, 2, 34), np.uint8)
    identity[:, :, :2] = np.float16([1 / 64]).view(np.uint8)
    for i in range(64):
        identity[i, i // 32, 2 + i % 32] = 64
    assert K.bind_stored is not None
    weight = K.bind_stored("linear", "Q8_0", (64, 64), identity.reshape(-1))
    np.testing.assert_allclose(K.to_numpy(K.linear(normed, weight, None)), rounded(values), rtol=1e-6, atol=0)


def test_ops_by_themselves() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, 40)).astype(np.float32) for _ in range(2))
    a, batch = given(K, x)
    b, _ = given(K, y)
    np.testing.assert_array_equal(K.to_numpy(a), x)
    np.testing.assert_array_equal(K.to_numpy(K.add(a, b)), x + y)
    np.testing.assert_array_equal(K.to_numpy(K.scale(a, 1.7)), x * np.float32(1.7))
    np.testing.assert_allclose(K.to_numpy(K.soft_cap(a, 2.0)), 2 * np.tanh(x / 2), rtol=1e-6)
    wanted = dataclasses.replace(batch, logits_rows=np.array([1, 4], np.int32))
    np.testing.assert_array_equal(
        K.to_numpy(K.select_rows(K.embedding(wanted, K.bind("embedding", x), 1.0), wanted)), x[[1, 4]]
    )
    gated = K.to_numpy(K.gated_activation(a, b, "silu"))
    np.testing.assert_allclose(gated, x / (1 + np.exp(-x.astype(np.float64))) * y, rtol=1e-6, atol=1e-7)
    weight = rng.standard_normal(8).astype(np.float32)
    headed = x.astype(np.float64).reshape(5, 5, 8)
    expected = headed / np.sqrt((headed**2).mean(axis=2, keepdims=True) + 1e-6) * weight
    normed = K.head_rms_norm(a, K.bind("vector", weight), 8, 1e-6)
    np.testing.assert_allclose(K.to_numpy(normed), expected.reshape(5, 40), rtol=1e-6, atol=1e-7)


def test_ops_without_a_native_form_are_named() -> None:
    x, _ = given(K, np.ones((2, 32), np.float32))
    rows = K.select_rows(x, tokens([0, 1]))
    with pytest.raises(ConfigError, match="no native form of the op HeadNorm on selected rows"):
        K.to_numpy(K.head_rms_norm(rows, K.bind("vector", np.ones(8, np.float32)), 8, 1e-6))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", 77, r"token_ids\[1\] is 77, outside 0 \.\. 76"),
        ("token_ids", -1, r"token_ids\[1\] is -1"),
        ("positions", 128, r"positions\[1\] is 128, outside 0 \.\. 127"),
        ("slots", 64 * 16, r"slots\[1\] is 1024, outside 0 \.\. 1023"),
        ("slots", 0, "slots of row 0 are not in its blocks"),
        ("logits_rows", 9, r"logits_rows\[1\] is 9, outside 0 \.\. 1"),
        ("positions", 5, "positions of row 0 are not its last tokens"),
    ],
)
def test_indices_out_of_range_are_refused_before_anything_runs(
    tmp_path: Path, field: str, value: int, message: str
) -> None:
    model = load(save(tiny_model(CONFIGS["llama"]()), tmp_path), K)
    spec = kv_spec(model.config)
    kv = KVStorage(spec, 64, K.new_kv(spec, 64))
    run = RecordedModel(model, kv, ThreadPool(2), "scalar")
    good = tokens([1, 2])
    assert run(good, kv).shape == (2, 77)
    array = getattr(good, field).copy()
    array[1] = value
    with pytest.raises(ValueError, match=message):
        run(dataclasses.replace(good, **{field: array}), kv)
    with pytest.raises(ValueError, match="the KV cache that it was recorded with"):
        run(good, KVStorage(spec, 64, K.new_kv(spec, 64)))
