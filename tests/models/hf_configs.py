"""A small config.json of every supported architecture, as its own models have it."""

from __future__ import annotations

from typing import Any

_DENSE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}

TINY: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        **_DENSE,
        "attention_bias": False,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
    },
    "GlmForCausalLM": {**_DENSE, "attention_bias": True, "head_dim": 8, "partial_rotary_factor": 0.5},
    "Glm4ForCausalLM": {**_DENSE, "attention_bias": False, "head_dim": 8, "partial_rotary_factor": 0.5},
    "LlamaForCausalLM": {**_DENSE, "attention_bias": False, "mlp_bias": False, "rope_scaling": None},
    "MistralForCausalLM": {**_DENSE, "sliding_window": None},
    "MixtralForCausalLM": {**_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen2ForCausalLM": {**_DENSE, "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 2},
    "Qwen3ForCausalLM": {**_DENSE, "attention_bias": False, "head_dim": 16, "use_sliding_window": False},
    "Qwen3MoeForCausalLM": {
        **_DENSE,
        "attention_bias": False,
        "head_dim": 16,
        "use_sliding_window": False,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
    },
}
