"""Memory that a model's steps need beside weights and KV blocks, in bytes, from its configuration alone."""

from __future__ import annotations

from slipstream.models.config import ModelConfig

FLOAT32_BYTES = 4


def activation_bytes(config: ModelConfig, backend: str) -> int:
    """Of one token in one layer: the residual, q, k, v and attention output, gate, up and their product; `cpu` keeps
    no more of the MLP than the product, and mostly in int8, but both for every expert of a token, and its input."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    if backend == "cpu":
        wide = config.intermediate_size
        if config.moe is not None:
            wide = max(wide, config.moe.top_k * (config.hidden_size + config.moe.intermediate_size))
        return FLOAT32_BYTES * (3 * config.hidden_size + heads + wide)
    return FLOAT32_BYTES * (4 * config.hidden_size + heads + 3 * config.intermediate_size)


def rope_bytes(config: ModelConfig) -> int:
    """Of one position in the rotation tables: cos and sin of every pair, for all layers and for the local ones."""
    ropes = [config.rope] if config.local_rope is None else [config.rope, config.local_rope]
    return sum(2 * FLOAT32_BYTES * (rope.rotary_dim // 2) for rope in ropes)


def logits_bytes(config: ModelConfig, rows: int) -> int:
    """Of so many rows of logits and a copy."""
    return 2 * FLOAT32_BYTES * rows * config.vocab_size
