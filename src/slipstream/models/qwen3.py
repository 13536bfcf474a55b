"""Qwen3 (dense): Llama's layers with RMS-normalised query and key heads. Yang et al., arXiv 2505.09388."""

from __future__ import annotations

from dataclasses import replace

from slipstream.models import gguf, huggingface, tensors
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import build_pre_norm
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint


def _from_hf(config: Reader) -> ModelConfig:
    config.require("attention_bias", False)
    num_layers, num_heads = config.num_layers("num_hidden_layers"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", 128)
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.integer("max_position_embeddings", 32768),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        rope=huggingface.rope(config, head_dim),
        windows=huggingface.late_windows(config, num_layers),
        attention_scale=head_dim**-0.5,
        activation=huggingface.activation(config),
        qk_norm=True,
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    return replace(gguf.dense(checkpoint), qk_norm=True)


FAMILY = Family(
    name="Qwen3",
    hf_architectures=("Qwen3ForCausalLM",),
    gguf_architectures=("qwen3",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=tensors.pre_norm_slots,
    ignorable=tensors.ignorable,
    build=build_pre_norm,
)
