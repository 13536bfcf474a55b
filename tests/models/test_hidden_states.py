"""A model that gives its hidden states too: the same logits, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3MoeConfig

from slipstream.errors import ConfigError
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.models.build import load_model
from slipstream.models.family import Model
from slipstream.models.fingerprint import model_fingerprint
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.harness import random_prompts, save, tiny_model
from tests.models.paged import PagedRunner

pytestmark = pytest.mark.fast
SIZES: dict[str, Any] = {
    "vocab_size": 77,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3 moe": lambda: Qwen3MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, sliding_window=9, sliding_window_pattern=2),
}
KERNELS = {"reference": select_kernels("reference"), "cpu": cpu_kernels(2)}


@pytest.fixture(params=CONFIGS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model(CONFIGS[request.param]()), tmp_path_factory.mktemp("model"))


def load(folder: Path, kernels: Kernels) -> Model:
    checkpoint = open_safetensors(folder)
    model = load_model(checkpoint, kernels, max_position=128)
    checkpoint.close()
    return model


class States(PagedRunner):
    """Keeps the states of the last step."""

    def __init__(self, model: Model, kernels: Kernels, after: tuple[int, ...]) -> None:
        super().__init__(model, kernels)
        forward = model.with_hidden_states(after)
        run = forward if kernels.compile is None else kernels.compile(forward, self.kv)
        self.states: list[np.ndarray[Any, Any]] = []

        def called(*args: Any) -> Any:
            logits, *states = run(*args)
            self.states = [kernels.to_numpy(each) for each in states]
            return logits

        self._model = called  # type: ignore[assignment]


def expected(folder: Path, prompt: list[int]) -> list[np.ndarray[Any, Any]]:
    """Behind every layer but the last, of which transformers shows the normed one only."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        states = model(torch.tensor([prompt]), use_cache=False, output_hidden_states=True).hidden_states
    return [each[0].numpy() for each in states[1:-1]]


@pytest.mark.parametrize("backend", KERNELS)
def test_states_are_those_of_transformers_and_logits_keep_their_bits(folder: Path, backend: str) -> None:
    model = load(folder, KERNELS[backend])
    prompts = random_prompts(77, [19, 6])
    plain, runner = PagedRunner(model, KERNELS[backend]), States(model, KERNELS[backend], (2, 0, 1))
    rows = {"a": prompts[0], "b": prompts[1]}
    ours, theirs = runner.step(rows), plain.step(rows)
    for name in rows:
        np.testing.assert_array_equal(ours[name], theirs[name])
    last, *others = runner.states
    assert last.shape == (25, 48)
    for state, wanted in zip(others, expected(folder, prompts[0]), strict=True):
        np.testing.assert_allclose(state[:19], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    kept = last.copy()
    more = runner.step({"a": [5], "b": [6, 7]})
    np.testing.assert_array_equal(more["b"], plain.step({"a": [5], "b": [6, 7]})["b"])
    assert runner.states[0].shape == (3, 48)
    assert not np.array_equal(runner.states[0], kept[:3])


@pytest.mark.parametrize("backend", KERNELS)
def test_the_last_state_is_what_the_final_norm_gets(folder: Path, backend: str) -> None:
    kernels = KERNELS[backend]
    model = load(folder, kernels)
    runner = States(model, kernels, (2,))
    prompt = random_prompts(77, [9])[0]
    logits = runner.step({"a": prompt})["a"]
    state, norm, head = runner.states[0], model._norm, model._head  # type: ignore[attr-defined]
    batch = runner._batch({"b": prompt})
    table = kernels.bind("embedding", state)
    rows = kernels.embedding(type(batch)(**{**_fields(batch), "token_ids": np.arange(9, dtype=np.int32)}), table, 1.0)
    np.testing.assert_allclose(kernels.to_numpy(head(norm(rows))), logits, rtol=1e-5, atol=1e-5)
    alone = PagedRunner(model, kernels)
    np.testing.assert_array_equal(kernels.to_numpy(model.hidden_states(alone._batch({"a": prompt}), alone.kv)), state)


def _fields(batch: Any) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}


@pytest.mark.parametrize("after", [(), (3,), (-1,), (0, 5)])
def test_layers_that_are_not_there_are_refused(folder: Path, after: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the model has the layers 0 to 2"):
        load(folder, KERNELS["cpu"]).with_hidden_states(after)


def fingerprint(folder: Path) -> str:
    checkpoint = open_safetensors(folder)
    try:
        return model_fingerprint(checkpoint)
    finally:
        checkpoint.close()


def test_the_fingerprint_survives_another_type_of_numbers_but_not_more_training(tmp_path: Path) -> None:
    model = tiny_model(LlamaConfig(**SIZES)).to(torch.bfloat16)
    stored = fingerprint(save(model, tmp_path / "bf16"))
    assert fingerprint(save(model.float(), tmp_path / "f32")) == stored
    with torch.no_grad():
        model.model.norm.weight[3] *= 1.01
    assert fingerprint(save(model, tmp_path / "trained")) != stored
    assert fingerprint(save(tiny_model(LlamaConfig(**{**SIZES, "num_hidden_layers": 4})), tmp_path / "deep")) != stored
