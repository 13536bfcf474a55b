"""Tensor slots that families share, under their Hugging Face and GGUF names."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.models.config import ModelConfig
from slipstream.weights.slots import TensorSlot


def frame_slots(config: ModelConfig) -> list[TensorSlot]:
    """Embedding, final norm and, unless tied, the output matrix."""
    shape = (config.vocab_size, config.hidden_size)
    slots = [
        TensorSlot("model.embed_tokens.weight", shape, "embedding", "token_embd.weight"),
        TensorSlot("model.norm.weight", (config.hidden_size,), "vector", "output_norm.weight"),
    ]
    if not config.tie_word_embeddings:
        slots.append(TensorSlot("lm_head.weight", shape, "linear", "output.weight"))
    return slots


def norm_slot(config: ModelConfig, layer: int, hf: str, gguf: str) -> TensorSlot:
    """A norm over the hidden size, e.g. ("input_layernorm", "attn_norm")."""
    return TensorSlot(
        f"model.layers.{layer}.{hf}.weight", (config.hidden_size,), "vector", f"blk.{layer}.{gguf}.weight"
    )


def attention_slots(config: ModelConfig, layer: int, *, interleaved_rows: bool = False) -> list[TensorSlot]:
    """q, k, v, o; their biases with config.attention_bias; head norms with config.qk_norm.

    `interleaved_rows`: GGUF files of the "llama" architecture store the rows of q and k pair by pair.
    """
    hf, gguf = f"model.layers.{layer}.self_attn", f"blk.{layer}"
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    slots: list[TensorSlot] = []
    for hf_part, gguf_part, rows, heads in (
        ("q_proj", "attn_q", q_size, config.num_heads if interleaved_rows else None),
        ("k_proj", "attn_k", kv_size, config.num_kv_heads if interleaved_rows else None),
        ("v_proj", "attn_v", kv_size, None),
    ):
        slots.append(
            TensorSlot(
                f"{hf}.{hf_part}.weight",
                (rows, config.hidden_size),
                "linear",
                f"{gguf}.{gguf_part}.weight",
                gguf_rope_heads=heads,
            )
        )
        if config.attention_bias:
            slots.append(
                TensorSlot(f"{hf}.{hf_part}.bias", (rows,), "vector", f"{gguf}.{gguf_part}.bias", gguf_rope_heads=heads)
            )
    slots.append(
        TensorSlot(f"{hf}.o_proj.weight", (config.hidden_size, q_size), "linear", f"{gguf}.attn_output.weight")
    )
    if config.qk_norm:
        for part in ("q", "k"):
            slots.append(
                TensorSlot(f"{hf}.{part}_norm.weight", (config.head_dim,), "vector", f"{gguf}.attn_{part}_norm.weight")
            )
    return slots


def mlp_slots(config: ModelConfig, layer: int) -> list[TensorSlot]:
    """gate, up, down of a dense layer."""
    hf, gguf = f"model.layers.{layer}.mlp", f"blk.{layer}"
    wide, narrow = config.intermediate_size, config.hidden_size
    return [
        TensorSlot(f"{hf}.gate_proj.weight", (wide, narrow), "linear", f"{gguf}.ffn_gate.weight"),
        TensorSlot(f"{hf}.up_proj.weight", (wide, narrow), "linear", f"{gguf}.ffn_up.weight"),
        TensorSlot(f"{hf}.down_proj.weight", (narrow, wide), "linear", f"{gguf}.ffn_down.weight"),
    ]


def pre_norm_slots(
    config: ModelConfig,
    *,
    interleaved_rows: bool = False,
    feed_forward: Callable[[ModelConfig, int], list[TensorSlot]] = mlp_slots,
) -> tuple[TensorSlot, ...]:
    """Everything of a pre-norm model; `feed_forward(config, layer)` gives that part of a layer, by default dense."""
    slots = frame_slots(config)
    for layer in range(config.num_layers):
        slots.append(norm_slot(config, layer, "input_layernorm", "attn_norm"))
        slots += attention_slots(config, layer, interleaved_rows=interleaved_rows)
        slots.append(norm_slot(config, layer, "post_attention_layernorm", "ffn_norm"))
        slots += feed_forward(config, layer)
    return tuple(slots)


def ignorable(name: str) -> bool:
    """Copies of what the configuration says already (rotation tables, a tied head)."""
    return name in ("lm_head.weight", "rope_freqs.weight") or name.endswith((".inv_freq", ".attn_rot_embd.weight"))
