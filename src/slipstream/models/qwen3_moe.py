"""Qwen3 MoE: Qwen3's attention, and experts in all or some of the layers. Yang et al., arXiv 2505.09388."""

from __future__ import annotations

from dataclasses import replace

from slipstream.kernels.table import Kernels
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models import gguf, huggingface, qwen3, sparse, tensors
from slipstream.models.config import ModelConfig, MoEConfig
from slipstream.models.family import Family, Model
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot

_NAMES = sparse.ExpertNames("mlp", gate="gate_proj", up="up_proj", down="down_proj")


def _from_hf(config: Reader) -> ModelConfig:
    config.require("attention_bias", False)
    num_layers = config.num_layers("num_hidden_layers")
    head_dim = huggingface.head_dim(config)
    # One window for all layers, unlike the dense Qwen3.
    window = config.integer("sliding_window", 4096) if config.flag("use_sliding_window", False) else None
    step = config.integer("decoder_sparse_step", 1)
    dense = set(config.indices("mlp_only_layers"))
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads", 4),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.integer("max_position_embeddings", 32768),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        rope=huggingface.rope(config, head_dim),
        windows=(window,) * num_layers,
        attention_scale=head_dim**-0.5,
        activation=huggingface.activation(config),
        qk_norm=True,
        moe=MoEConfig(
            # transformers 5 writes the second name, the published files have the first.
            num_experts=config.integer("num_experts", config.integer("num_local_experts", 128)),
            top_k=config.integer("num_experts_per_tok", 8),
            intermediate_size=config.integer("moe_intermediate_size", 768),
            normalise=config.flag("norm_topk_prob", False),
            sparse_layers=frozenset(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense),
        ),
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    config = qwen3.FAMILY.from_gguf(checkpoint)
    keys = gguf.reader(checkpoint)
    wide = keys.integer("expert_feed_forward_length", config.intermediate_size // keys.integer("expert_used_count"))
    return replace(config, moe=sparse.gguf_moe(checkpoint, range(config.num_layers), intermediate_size=wide))


def _slots(config: ModelConfig) -> tuple[TensorSlot, ...]:
    return sparse.slots(config, _NAMES)


def _build(config: ModelConfig, kernels: Kernels, weights: Weights, shard: Shard, max_position: int) -> Model:
    return sparse.build(config, kernels, weights, shard, max_position, _NAMES)


FAMILY = Family(
    name="Qwen3 MoE",
    hf_architectures=("Qwen3MoeForCausalLM",),
    gguf_architectures=("qwen3moe",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=_slots,
    ignorable=tensors.ignorable,
    build=_build,
)
