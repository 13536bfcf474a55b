"""GLM-4: half-rotated heads in interleaved pairs, biases on q, k and v where configured, gate and up in one matrix.

GLM-4-0414 (Glm4ForCausalLM) normalises the outputs of attention and MLP too; GLM-4-9B (GlmForCausalLM) does not.
Team GLM, arXiv 2406.12793.
"""

from __future__ import annotations

from dataclasses import replace

from slipstream.kernels.table import Kernels
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models import gguf, huggingface, tensors
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import CausalLM, build_pre_norm, build_sandwich_norm
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot


def _from_hf(config: Reader) -> ModelConfig:
    head_dim, num_layers = config.integer("head_dim", 128), config.num_layers("num_hidden_layers")
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=config.integer("num_attention_heads"),
        num_kv_heads=config.integer("num_key_value_heads", 2),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1.5625e-7),
        max_position_embeddings=config.integer("max_position_embeddings", 131072),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        rope=huggingface.rope(config, head_dim, rotary_factor=0.5, interleaved=True),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        activation=huggingface.activation(config),
        attention_bias=config.flag("attention_bias", True),
        sandwich_norm=config.texts("architectures")[0] == "Glm4ForCausalLM",
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    config = gguf.reader(checkpoint)
    config.require("nextn_predict_layers", 0)
    config.require("rope.dimension_sections")  # rotation by image rows and columns; q and k are permuted then
    return replace(
        gguf.dense(checkpoint, gguf.rotation(checkpoint, config, interleaved=True)),
        attention_bias="blk.0.attn_q.bias" in checkpoint.tensors,
        sandwich_norm=True,
    )


def _slots(config: ModelConfig) -> tuple[TensorSlot, ...]:
    norms = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]
    if config.sandwich_norm:
        norms += [("post_self_attn_layernorm", "post_attention_norm"), ("post_mlp_layernorm", "post_ffw_norm")]
    slots = tensors.frame_slots(config)
    for layer in range(config.num_layers):
        slots += [tensors.norm_slot(config, layer, hf, gguf_name) for hf, gguf_name in norms]
        slots += tensors.attention_slots(config, layer)
        slots += _mlp_slots(config, layer)
    return tuple(slots)


def _mlp_slots(config: ModelConfig, layer: int) -> list[TensorSlot]:
    """Both formats keep the rows of gate, then those of up, in one matrix."""
    hf, block = f"model.layers.{layer}.mlp", f"blk.{layer}"
    wide, narrow = config.intermediate_size, config.hidden_size
    slots = [
        TensorSlot(
            f"{hf}.{part}.weight",
            (wide, narrow),
            "linear",
            f"{block}.ffn_up.weight",
            hf_name=f"{hf}.gate_up_proj.weight",
            hf_rows=rows,
            gguf_rows=rows,
        )
        for part, rows in (("gate_proj", (0, wide)), ("up_proj", (wide, 2 * wide)))
    ]
    return [*slots, TensorSlot(f"{hf}.down_proj.weight", (narrow, wide), "linear", f"{block}.ffn_down.weight")]


def _build(config: ModelConfig, kernels: Kernels, weights: Weights, shard: Shard, max_position: int) -> CausalLM:
    if not config.sandwich_norm:
        return build_pre_norm(config, kernels, weights, shard, max_position)
    norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return build_sandwich_norm(config, kernels, weights, shard, max_position, norms)


FAMILY = Family(
    name="GLM-4",
    hf_architectures=("GlmForCausalLM", "Glm4ForCausalLM"),
    gguf_architectures=("glm4",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=_slots,
    ignorable=tensors.ignorable,
    build=_build,
)
