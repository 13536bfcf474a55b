"""What a configuration asks for and nobody implements is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import ConfigError, ModelFormatError, UnsupportedModelError
from slipstream.layers.shard import Shard
from slipstream.models import llama
from slipstream.models.build import build_model, kv_spec
from slipstream.models.config import ModelConfig
from slipstream.models.reader import Reader
from slipstream.models.registry import find_family, read_config
from tests.models.hf_configs import TINY
from tests.models.recording import recording_kernels

pytestmark = pytest.mark.fast


class Metadata:
    """A checkpoint that is nothing but its metadata and tensor names."""

    path = Path("somewhere/model")

    def __init__(self, metadata: Mapping[str, Any], format: str = "safetensors", **tensors: Any) -> None:
        self.metadata = metadata
        self.format: Any = format
        self.tensors: Any = tensors

    def raw(self, name: str) -> np.ndarray[Any, Any]:
        raise AssertionError(name)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.tensors[name], dtype=np.float32)

    def close(self) -> None:
        pass


def hf(architecture: str = "LlamaForCausalLM", /, **changes: Any) -> ModelConfig:
    checkpoint = Metadata({"architectures": [architecture], **TINY[architecture], **changes})
    return read_config(find_family(checkpoint), checkpoint)


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 56,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}

LLAMA3 = {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
EXPERTS = {"llama.expert_count": 4, "llama.expert_used_count": 2}


def gguf(changes: Mapping[str, Any] | None = None, **tensors: Any) -> ModelConfig:
    checkpoint = Metadata({**GGUF, **(changes or {})}, "gguf", **tensors)
    return read_config(find_family(checkpoint), checkpoint)


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("LlamaForCausalLM", {"attention_bias": True}, "attention_bias = True"),
        ("LlamaForCausalLM", {"mlp_bias": True}, "mlp_bias = True"),
        ("LlamaForCausalLM", {"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "type = 'longrope'"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type = 'longrope'"),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config = .*gptq"),
        ("Qwen3ForCausalLM", {"attention_bias": True}, "attention_bias = True"),
        ("Qwen3MoeForCausalLM", {"attention_bias": True}, "attention_bias = True"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": "x"}, "max_window_layers = 'x'"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 2}, "layer_types = "),
    ],
)
def test_unsupported_options(architecture: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        hf(architecture, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer, not '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, not True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number, not nan"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be a mapping"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"hidden_act": 3}, "hidden_act must be a string"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
        ({"head_dim": 7}, "7 rotary dimensions"),
        ({"vocab_size": 2**31}, "vocab_size must be at most 2147483647, not 2147483648"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings must be at most 2147483647"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers must be at most 4096"),
        ({"rope_theta": 10**400}, "rope_theta must be a finite number, not 1000"),
        ({"rms_norm_eps": -1e-6}, "must not be negative, but is -1e-06"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor must be above 0 and at most 1"),
        ({"rope_theta": 0}, "default rotation of base 0.0 and factor 1.0 cannot be computed"),
        ({"rope_theta": -2}, "base -2.0 .* cannot be computed"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "linear rotation .* factor 0.0 cannot be computed"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-320}}, "linear rotation .* cannot be computed"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "llama3 rotation .* cannot be computed"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 0}}, "yarn rotation .* cannot be computed"),
        ({"rope_scaling": {"type": "yarn", "factor": 4, "beta_slow": -1}}, "yarn rotation .* cannot be computed"),
    ],
)
def test_broken_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        hf(**changes)


def test_both_spellings_of_the_rotation_are_read() -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    old = hf(rope_theta=123.0, rope_scaling={"type": "yarn", **yarn})
    new = hf(rope_parameters={"rope_type": "yarn", "rope_theta": 123.0, **yarn})
    assert old.rope == new.rope
    assert (old.rope.theta, old.rope.kind, old.rope.factor, old.rope.original_max_position) == (123.0, "yarn", 4.0, 64)


def test_mistral_window_absent_and_null_differ() -> None:
    absent = {key: value for key, value in TINY["MistralForCausalLM"].items() if key != "sliding_window"}
    reader = Reader({"architectures": ["MistralForCausalLM"], **absent}, "config.json")
    assert llama.FAMILY.from_hf(reader).windows == (4096, 4096)
    assert hf("MistralForCausalLM").windows == (None, None)


def test_unknown_architectures_list_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'MambaForCausalLM' is not supported.*LlamaForCausalLM.*Qwen2For"):
        find_family(Metadata({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match=r"'mamba' is not supported.*llama.*qwen2"):
        find_family(Metadata({"general.architecture": "mamba"}, "gguf"))
    with pytest.raises(ModelFormatError, match="architectures is missing"):
        find_family(Metadata({}))


def test_gguf_metadata() -> None:
    config = gguf()
    assert (config.vocab_size, config.head_dim, config.rope.rotary_dim, config.tie_word_embeddings) == (3, 8, 8, True)
    assert config.rope.theta == 10000.0
    assert not gguf(**{"output.weight": None}).tie_word_embeddings
    assert gguf({"llama.attention.sliding_window": 16}).windows == (16, 16)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({**EXPERTS, "llama.expert_shared_count": 1}, "llama.expert_shared_count = 1"),
        ({**EXPERTS, "llama.expert_gating_func": 2}, "llama.expert_gating_func = 2"),
        ({**EXPERTS, "llama.expert_weights_scale": 2.5}, "llama.expert_weights_scale = 2.5"),
        ({**EXPERTS, "llama.expert_weights_norm": False}, "llama.expert_weights_norm = False"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type = 'longrope'"),
        ({"llama.attention.value_length": 4}, "llama.attention.value_length = 4"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_log_multiplier": 0.1},
            "yarn_log_multiplier = 0.1",
        ),
    ],
)
def test_unsupported_gguf_options(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        gguf(changes)


def test_experts_in_separate_tensors_are_refused() -> None:
    tensors: dict[str, Any] = {"blk.0.ffn_gate.0.weight": None}
    with pytest.raises(UnsupportedModelError, match=r"one by one \(blk\.0\.ffn_gate\.0\.weight\).*ffn_gate_exps"):
        gguf(EXPERTS, **tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_only_layers": [0, -1]}, "mlp_only_layers must be a list of integers from 0 on"),
        ({"mlp_only_layers": 1}, "mlp_only_layers must be a list of integers from 0 on, not 1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive integer, not 0"),
        ({"num_experts_per_tok": 5}, "5 experts per token out of 4"),
    ],
)
def test_broken_expert_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        hf("Qwen3MoeForCausalLM", **changes)


def test_broken_gguf_values() -> None:
    with pytest.raises(ModelFormatError, match=r"llama\.expert_used_count is missing"):
        gguf({"llama.expert_count": 8})
    with pytest.raises(ModelFormatError, match=r"attention\.head_count must be a positive integer, not \[4, 2\]"):
        gguf({"llama.attention.head_count": [4, 2]})
    with pytest.raises(ModelFormatError, match="3 rope frequency factors for 4 pairs"):
        gguf(**{"rope_freqs.weight": [1, 1, 8]})
    with pytest.raises(ModelFormatError, match=r"rope_freqs\.weight must hold positive numbers"):
        gguf(**{"rope_freqs.weight": [1, 1, 0, 8]})


def test_dynamic_rope_stops_at_the_models_context() -> None:
    config = hf(rope_scaling={"type": "dynamic", "factor": 2.0})
    kernels, _ = recording_kernels()
    weights = {slot.name: None for slot in llama.FAMILY.slots(config)}
    build_model(llama.FAMILY, config, weights, kernels)
    with pytest.raises(ConfigError, match="up to the model's own 128 tokens, not 129"):
        build_model(llama.FAMILY, config, weights, kernels, max_position=129)


def test_tensor_parallel_groups_are_refused() -> None:
    config = hf()
    kernels, _ = recording_kernels()
    weights = {slot.name: None for slot in llama.FAMILY.slots(config)}
    with pytest.raises(ConfigError, match="needs a communicator"):
        build_model(llama.FAMILY, config, weights, kernels, shard=Shard(0, 2))


def test_kv_spec() -> None:
    spec = kv_spec(hf(), block_size=8, dtype="float16")
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.block_size) == (2, 2, 8, 8)
    assert spec.bytes_per_token == 2 * 2 * 2 * 8 * 2
