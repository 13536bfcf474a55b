"""Llama and its kin against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, MistralConfig

from tests.models.harness import check_family, tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def test_llama(tmp_path: Path) -> None:
    model = check_family(tiny_model(LlamaConfig(**SIZES)), tmp_path)
    assert not model.config.tie_word_embeddings


def test_tied_head_with_its_own_head_size(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=12, rms_norm_eps=1e-3)
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.head_dim == 12
    assert model.config.tie_word_embeddings


def test_context_of_several_key_tiles(tmp_path: Path) -> None:
    check_family(tiny_model(LlamaConfig(**SIZES)), tmp_path, lengths=(100, 64, 65), num_blocks=128)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.2,
            "truncate": False,
        },
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_rope_scaling(tmp_path: Path, rope: dict[str, Any]) -> None:
    config = LlamaConfig(**SIZES, rope_parameters={"rope_theta": 500.0, **rope})
    check_family(tiny_model(config), tmp_path, lengths=(90, 3))


@pytest.mark.parametrize("window", [1, 5, 70, None])
def test_mistral_window(tmp_path: Path, window: int | None) -> None:
    config = MistralConfig(**SIZES, sliding_window=window)
    model = check_family(tiny_model(config), tmp_path, lengths=(90, 7))
    assert model.config.windows == (window, window)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([2, 6, 8, 16, 20]),
    hidden=st.sampled_from([8, 12, 20]),
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    block_size=st.sampled_from([1, 3, 8, 16]),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    tmp_path: Path,
    kv_heads: int,
    group: int,
    head_dim: int,
    hidden: int,
    lengths: list[int],
    block_size: int,
    seed: int,
) -> None:
    heads = kv_heads * group
    config = LlamaConfig(
        vocab_size=53,
        hidden_size=hidden * heads,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=128,
    )
    folder = tmp_path / "model"
    check_family(tiny_model(config, seed), folder, lengths=lengths, block_size=block_size, num_blocks=300, seed=seed)
