"""Gemma 3 (text): sandwich norms, QK norm, GeGLU, and windowed layers with a rotation of their own.

Gemma Team, arXiv 2503.19786.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slipstream.kernels.table import Kernels
from slipstream.layers.rope import RopeConfig
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights
from slipstream.models import gguf, huggingface, tensors
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import CausalLM, build_sandwich_norm
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
PATTERN = 6  # every sixth layer sees everything
LAYERS_OF_27B = 62
NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
)


def _from_hf(config: Reader) -> ModelConfig:
    config.require("attention_bias", False)
    config.require("use_bidirectional_attention", False)
    num_layers, head_dim = config.num_layers("num_hidden_layers"), config.integer("head_dim", 256)
    rope, local_rope = _hf_ropes(config, head_dim)
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=config.integer("num_attention_heads", 8),
        num_kv_heads=config.integer("num_key_value_heads", 4),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.integer("max_position_embeddings", 131072),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        rope=rope,
        local_rope=local_rope,
        windows=_hf_windows(config, num_layers),
        attention_scale=config.integer("query_pre_attn_scalar", 256) ** -0.5,
        activation=huggingface.activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        qk_norm=True,
        sandwich_norm=True,
        embedding_scale=_embedding_scale(config.integer("hidden_size")),
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping"),
        final_soft_cap=_soft_cap(config, "final_logit_softcapping"),
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    config = gguf.reader(checkpoint)
    rope = gguf.rotation(checkpoint, config, theta=config.number("rope.freq_base"))
    base = gguf.dense(checkpoint, rope)
    # The format has no key for query_pre_attn_scalar; only the 27B model's differs from the head size.
    scalar = base.hidden_size // base.num_heads if base.num_layers == LAYERS_OF_27B else base.head_dim
    return replace(
        base,
        local_rope=RopeConfig(config.number("rope.freq_base_swa", LOCAL_THETA), rope.rotary_dim),
        windows=_gguf_windows(config, base.num_layers),
        attention_scale=config.number("attention.scale", scalar**-0.5),
        activation="gelu_tanh",
        qk_norm=True,
        sandwich_norm=True,
        embedding_scale=_embedding_scale(base.hidden_size),
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping"),
        final_soft_cap=_soft_cap(config, "final_logit_softcapping"),
    )


def _embedding_scale(hidden_size: int) -> float:
    """sqrt(hidden size), rounded to the type that the embeddings are computed in."""
    return float(np.float32(hidden_size**0.5))


def _soft_cap(config: Reader, key: str) -> float | None:
    """None where the key is absent or zero."""
    return config.number(key, 0.0) or None


def _hf_ropes(config: Reader, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """The global and the local rotation: one section each in transformers 5, before that rope_theta with rope_scaling
    and rope_local_base_freq."""
    config.require("partial_rotary_factor", 1.0)
    sections = config.section("rope_parameters")
    if not set(sections.values) <= {"full_attention", "sliding_attention"}:
        raise config.unsupported("rope_parameters")
    everywhere = sections.section("full_attention") if sections.values else config.section("rope_scaling")
    local = sections.section("sliding_attention")
    for section in (everywhere, local):
        section.require("partial_rotary_factor", 1.0)
    for key in ("rope_type", "type"):
        local.require(key, "default", "linear")
    own_base = Reader({"rope_theta": config.values.get("rope_local_base_freq")}, config.where)
    return (
        huggingface.rope_section(config, everywhere, head_dim, theta=GLOBAL_THETA),
        huggingface.rope_section(own_base, local, head_dim, theta=LOCAL_THETA),
    )


def _hf_windows(config: Reader, num_layers: int) -> tuple[int | None, ...]:
    window = config.integer("sliding_window", 4096)
    if config.has("layer_types"):
        windows = huggingface.typed_windows(config, window)
    else:
        windows = _periodic_windows(config.integer("sliding_window_pattern", PATTERN), window, num_layers)
    # Absent means 4096, but an explicit null fits only a model without windowed layers.
    if any(windows) and config.values.get("sliding_window", window) is None:
        raise config.unsupported("sliding_window")
    return windows


def _gguf_windows(config: Reader, num_layers: int) -> tuple[int | None, ...]:
    """A file without a window has none. The pattern is a period, or a flag per layer: whether it has the window."""
    if not config.has("attention.sliding_window"):
        return (None,) * num_layers
    window = config.integer("attention.sliding_window")
    key = "attention.sliding_window_pattern"
    flags = config.values.get(config.prefix + key)
    if isinstance(flags, np.ndarray) and flags.dtype == np.bool_:
        return tuple(window if windowed else None for windowed in flags.tolist())
    return _periodic_windows(config.integer(key, PATTERN), window, num_layers)


def _periodic_windows(period: int, window: int, num_layers: int) -> tuple[int | None, ...]:
    """The last layer of every `period` sees everything."""
    return tuple(window if (layer + 1) % period else None for layer in range(num_layers))


def _slots(config: ModelConfig) -> tuple[TensorSlot, ...]:
    slots = tensors.frame_slots(config)
    for layer in range(config.num_layers):
        slots += [tensors.norm_slot(config, layer, hf, gguf_name) for hf, gguf_name in NORMS]
        slots += tensors.attention_slots(config, layer)
        slots += tensors.mlp_slots(config, layer)
    return tuple(replace(slot, hf_offset=1.0) if slot.name.endswith("norm.weight") else slot for slot in slots)


def _build(config: ModelConfig, kernels: Kernels, weights: Weights, shard: Shard, max_position: int) -> CausalLM:
    before, after, mlp_before, mlp_after = (hf for hf, _ in NORMS)
    return build_sandwich_norm(config, kernels, weights, shard, max_position, (before, after, mlp_before, mlp_after))


FAMILY = Family(
    name="Gemma 3",
    hf_architectures=("Gemma3ForCausalLM",),
    gguf_architectures=("gemma3",),
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=_slots,
    ignorable=tensors.ignorable,
    build=_build,
)
