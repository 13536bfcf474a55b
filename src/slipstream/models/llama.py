"""Llama 2 and 3, and models built like them: SmolLM2, Mistral (every layer sees a window).

Touvron et al., arXiv 2307.09288; Llama 3: arXiv 2407.21783; Mistral: Jiang et al., arXiv 2310.06825.
"""

from __future__ import annotations

from dataclasses import replace

from slipstream.models import gguf, huggingface, tensors
from slipstream.models.config import ModelConfig
from slipstream.models.decoder import build_pre_norm
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.slots import TensorSlot


def _from_hf(config: Reader) -> ModelConfig:
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    mistral = config.texts("architectures")[0] == "MistralForCausalLM"
    num_layers, num_heads = config.num_layers("num_hidden_layers"), config.integer("num_attention_heads")
    # A Mistral file that says nothing has a window, one that says null has none.
    window = 4096 if mistral and "sliding_window" not in config.values else None
    if mistral and config.has("sliding_window"):
        window = config.integer("sliding_window")
    head_dim = huggingface.head_dim(config)
    return ModelConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", 8 if mistral else num_heads),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.integer("max_position_embeddings", 131072 if mistral else 2048),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        rope=huggingface.rope(config, head_dim),
        windows=(window,) * num_layers,
        attention_scale=head_dim**-0.5,
        activation=huggingface.activation(config),
    )


def _from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    config = gguf.reader(checkpoint)
    for key in ("attention.clamp_kqv", "logit_scale", "embedding_scale", "residual_scale"):
        config.require(key, 0)
    window = config.integer("attention.sliding_window") if config.has("attention.sliding_window") else None
    base = gguf.dense(checkpoint)
    return replace(base, windows=(window,) * base.num_layers)


def _slots(config: ModelConfig) -> tuple[TensorSlot, ...]:
    return tensors.pre_norm_slots(config, interleaved_rows=True)


FAMILY = Family(
    name="Llama",
    hf_architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    gguf_architectures=("llama",),
    gguf_experts=False,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    slots=_slots,
    ignorable=tensors.ignorable,
    build=build_pre_norm,
)
