"""A model read from GGUF gives exactly the numbers of the same model read from safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from slipstream.layers.rope import RopeConfig, frequencies
from slipstream.models import llama, qwen2, qwen3
from slipstream.models.build import load_model
from slipstream.models.family import Family, Model
from slipstream.weights.formats.gguf import open_gguf
from tests.models.gguf_twin import write_twin
from tests.models.harness import KERNELS, load, random_prompts, save, tiny_model
from tests.models.paged import PagedRunner, run_whole
from tests.models.test_llama import SIZES

pytestmark = pytest.mark.fast


def load_gguf(path: Path) -> Model:
    checkpoint = open_gguf(path)
    model = load_model(checkpoint, KERNELS)
    checkpoint.close()
    return model


def assert_same(ours: Model, twin: Model) -> None:
    (tokens,) = random_prompts(ours.config.vocab_size, [40])
    expected = run_whole(PagedRunner(ours, KERNELS), "a", tokens)
    np.testing.assert_array_equal(run_whole(PagedRunner(twin, KERNELS), "a", tokens), expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("config", "family", "architecture"),
    [
        (LlamaConfig(**SIZES, rms_norm_eps=2**-20), llama.FAMILY, "llama"),
        (Qwen2Config(**SIZES, rms_norm_eps=2**-20), qwen2.FAMILY, "qwen2"),
        (Qwen3Config(**SIZES, rms_norm_eps=2**-20, head_dim=24), qwen3.FAMILY, "qwen3"),
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_gguf_equals_safetensors(tmp_path: Path, config: Any, family: Family, architecture: str, tied: bool) -> None:
    config.tie_word_embeddings = tied
    folder = save(tiny_model(config), tmp_path / "hf")
    ours = load(folder)
    twin = load_gguf(write_twin(folder, tmp_path / "twin.gguf", family, ours.config, architecture=architecture))
    assert twin.config == ours.config
    assert_same(ours, twin)


def test_llama3_frequency_factors_come_as_a_tensor(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 512.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    config = LlamaConfig(**SIZES, rms_norm_eps=2**-20, rope_parameters=rope)
    folder = save(tiny_model(config), tmp_path / "hf")
    ours = load(folder)
    plain = frequencies(RopeConfig(512.0, ours.config.rope.rotary_dim))
    factors = (plain / frequencies(ours.config.rope)).astype(np.float32)
    path = write_twin(
        folder,
        tmp_path / "twin.gguf",
        llama.FAMILY,
        ours.config,
        architecture="llama",
        extra={"rope_freqs.weight": factors},
    )
    twin = load_gguf(path)
    np.testing.assert_allclose(frequencies(twin.config.rope), frequencies(ours.config.rope), rtol=1e-6)
    (tokens,) = random_prompts(99, [40])
    np.testing.assert_allclose(
        run_whole(PagedRunner(twin, KERNELS), "a", tokens),
        run_whole(PagedRunner(ours, KERNELS), "a", tokens),
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("kind", "rope"),
    [
        ("linear", {"rope_type": "linear", "factor": 4.0}),
        ("yarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    ],
)
def test_rope_scaling_in_metadata(tmp_path: Path, kind: str, rope: dict[str, Any]) -> None:
    config = Qwen2Config(**SIZES, rms_norm_eps=2**-20, rope_parameters={"rope_theta": 1024.0, **rope})
    folder = save(tiny_model(config), tmp_path / "hf")
    ours = load(folder)
    metadata: dict[str, int | float | str] = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    if kind == "yarn":
        metadata["rope.scaling.original_context_length"] = 32
    path = write_twin(
        folder, tmp_path / "twin.gguf", qwen2.FAMILY, ours.config, architecture="qwen2", metadata=metadata
    )
    twin = load_gguf(path)
    assert twin.config == ours.config
    assert_same(ours, twin)
