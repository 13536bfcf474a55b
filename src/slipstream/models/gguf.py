"""The parts of GGUF metadata that families share.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from slipstream.errors import ModelFormatError
from slipstream.layers.rope import RopeConfig, yarn_attention_factor
from slipstream.models.config import ModelConfig
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint

FREQUENCY_FACTORS = "rope_freqs.weight"


def reader(checkpoint: Checkpoint) -> Reader:
    """Reads the keys of the file's own architecture, e.g. integer("block_count") is llama.block_count."""
    where = str(checkpoint.path)
    architecture = Reader(checkpoint.metadata, where).text("general.architecture")
    return Reader(checkpoint.metadata, where, f"{architecture}.")


def vocab_size(config: Reader) -> int:
    tokens = config.values.get("tokenizer.ggml.tokens")
    if config.has("vocab_size") or tokens is None:
        return config.integer("vocab_size")
    return len(tokens)


def head_dim(config: Reader) -> int:
    """Refuses heads whose values are not as long as their keys."""
    size = config.integer(
        "attention.key_length", config.integer("embedding_length") // config.integer("attention.head_count")
    )
    if config.integer("attention.value_length", size) != size:
        raise config.unsupported("attention.value_length")
    return size


def dense(checkpoint: Checkpoint, rope: RopeConfig | None = None) -> ModelConfig:
    """What every family reads alike, as a plain Llama-like model; a family replaces what is its own.

    `rope` is by default the file's one rotation.
    """
    config = reader(checkpoint)
    num_layers, num_heads, size = (
        config.num_layers("block_count"),
        config.integer("attention.head_count"),
        head_dim(config),
    )
    return ModelConfig(
        vocab_size=vocab_size(config),
        hidden_size=config.integer("embedding_length"),
        intermediate_size=config.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("attention.head_count_kv", num_heads),
        head_dim=size,
        rms_norm_eps=config.number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=config.integer("context_length"),
        tie_word_embeddings=tied(checkpoint),
        rope=rotation(checkpoint, config) if rope is None else rope,
        windows=(None,) * num_layers,
        attention_scale=size**-0.5,
    )


def tied(checkpoint: Checkpoint) -> bool:
    """GGUF has no flag: a file without an output matrix reuses the token embeddings."""
    return "output.weight" not in checkpoint.tensors


def has_experts(checkpoint: Checkpoint) -> bool:
    config = reader(checkpoint)
    return config.has("expert_count") and config.values[config.prefix + "expert_count"] != 0


def rotation(
    checkpoint: Checkpoint, config: Reader, *, theta: float = 10000.0, interleaved: bool = False
) -> RopeConfig:
    """The model's (global) rotation; Llama 3 files carry their frequency factors as a tensor."""
    rotary_dim = config.integer("rope.dimension_count", head_dim(config))
    theta = config.number("rope.freq_base", theta)
    factors: tuple[float, ...] | None = None
    if FREQUENCY_FACTORS in checkpoint.tensors:
        factors = tuple(float(value) for value in checkpoint.read(FREQUENCY_FACTORS))
        if not all(0 < value < float("inf") for value in factors):
            raise ModelFormatError(f"{FREQUENCY_FACTORS} must hold positive numbers.", where=config.where)
    kind = config.text("rope.scaling.type", "linear" if config.has("rope.scale_linear") else "none")
    if kind == "none":
        return RopeConfig(theta, rotary_dim, interleaved, frequency_factors=factors)
    if kind == "linear":
        factor = config.number("rope.scaling.factor", config.number("rope.scale_linear", 1.0))
        return RopeConfig(theta, rotary_dim, interleaved, kind="linear", factor=factor, frequency_factors=factors)
    if kind != "yarn":
        raise config.unsupported("rope.scaling.type")
    for key in ("rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"):
        config.require(key, 0.0 if key.endswith("multiplier") else 1.0)
    factor = config.number("rope.scaling.factor")
    return RopeConfig(
        theta,
        rotary_dim,
        interleaved,
        kind="yarn",
        factor=factor,
        original_max_position=config.integer("rope.scaling.original_context_length", config.integer("context_length")),
        beta_fast=config.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=config.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor) * config.number("rope.scaling.attn_factor", 1.0),
        frequency_factors=factors,
    )
