"""Mixtral: Llama's attention, and experts in every layer. Jiang et al., arXiv 2401.04088.

GGUF files of Mixtral call themselves "llama" and have an expert count.
"""

from __future__ import annotations

from dataclasses import replace

from slipstream.kernels.table import Kernels
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models import huggingface, llama, sparse, tensors
from slipstream.models.config import ModelConfig, MoEConfig
from slipstream.models.family import Family, Model
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot

_NAMES = sparse.ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2")


def _from_hf(config: Reader) -> ModelConfig:
    num_layers = config.num_layers("num_hidden_layers")
    head_dim = huggingface.head_dim(config)
    intermediate_size = config.integer("intermediate_size")
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads", 8),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-5),
        max_position_embeddings=config.integer("max_position_embeddings", 131072),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        rope=huggingface.rope(config, head_dim, theta=1e6),
        windows=(window,) * num_layers,
        attention_scale=head_dim**-0.5,
        activation=huggingface.activation(config),
        moe=MoEConfig(
            num_experts=config.integer("num_local_experts", 8),
            top_k=config.integer("num_experts_per_tok", 2),
            intermediate_size=intermediate_size,
            normalise=True,
            sparse_layers=frozenset(range(num_layers)),
        ),
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    config = llama.FAMILY.from_gguf(checkpoint)
    layers = range(config.num_layers)
    return replace(config, moe=sparse.gguf_moe(checkpoint, layers, intermediate_size=config.intermediate_size))


def _slots(config: ModelConfig) -> tuple[TensorSlot, ...]:
    return sparse.slots(config, _NAMES, interleaved_rows=True)


def _build(config: ModelConfig, kernels: Kernels, weights: Weights, shard: Shard, max_position: int) -> Model:
    return sparse.build(config, kernels, weights, shard, max_position, _NAMES)


FAMILY = Family(
    name="Mixtral",
    hf_architectures=("MixtralForCausalLM",),
    gguf_architectures=("llama",),
    gguf_experts=True,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=_slots,
    ignorable=tensors.ignorable,
    build=_build,
)
