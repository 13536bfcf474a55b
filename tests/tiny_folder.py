"""A whole model in a folder that runs in milliseconds: Llama, two layers, a byte tokenizer, a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, HEADS, KV_HEADS, LAYERS, CONTEXT = 32, 4, 2, 2, 256


def write_tiny_folder(folder: Path, *, seed: int = 0, chat_template: bool = True, **config: Any) -> Path:
    """Write config.json, model.safetensors and the tokenizer's files; `config` overrides values of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder, chat_template)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 56,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values))
    generator = np.random.default_rng(seed)
    save_file({name: _values(generator, name, shape) for name, shape in _shapes(values).items()}, folder / WEIGHTS)
    return folder


WEIGHTS = "model.safetensors"


def _write_tokenizer(folder: Path, chat_template: bool) -> int:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"eos_token": "<|endoftext|>"}
    if chat_template:
        settings["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(alphabet) + len(SPECIAL)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.k_proj.weight": (kv, hidden),
            f"{at}.self_attn.v_proj.weight": (kv, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def _values(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    noise = generator.standard_normal(shape, dtype=np.float32)
    return 1 + 0.2 * noise if len(shape) == 1 else noise * np.float32(shape[-1] ** -0.5)
