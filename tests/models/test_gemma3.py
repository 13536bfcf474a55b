"""Gemma 3 against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Gemma3TextConfig

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.layers.rope import RopeConfig
from slipstream.models import gemma3
from slipstream.models.config import ModelConfig
from slipstream.models.registry import find_family
from slipstream.weights.formats.gguf import open_gguf
from tests.models.gguf_twin import write_twin
from tests.models.harness import check_family, load, save, tiny_model
from tests.models.real_file import check_real_file
from tests.models.test_gguf_route import assert_same, load_gguf
from tests.models.test_llama import SIZES
from tests.models.test_refusals import Metadata, hf

SMALL: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 3,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "pad_token_id": 0,
}
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 4096.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 64.0},
}


@pytest.mark.parametrize("tied", [True, False])
def test_gemma3(tmp_path: Path, tied: bool) -> None:
    config = Gemma3TextConfig(**SMALL, rope_parameters=ROPES, tie_word_embeddings=tied)
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.windows == (5, None, 5)
    assert model.config.rope == RopeConfig(4096.0, 12, kind="linear", factor=8.0)
    assert model.config.local_rope == RopeConfig(64.0, 12)
    assert model.config.attention_scale == 20**-0.5
    assert model.config.tie_word_embeddings == tied


def test_layer_types_and_a_window_longer_than_a_key_tile(tmp_path: Path) -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    config = Gemma3TextConfig(**{**SMALL, "sliding_window": 70}, layer_types=types, rope_parameters=ROPES)
    model = check_family(tiny_model(config), tmp_path, lengths=(100, 3))
    assert model.config.windows == (None, 70, 70)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([2, 8, 20]),
    window=st.integers(1, 80),
    pattern=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=3),
    block_size=st.sampled_from([1, 3, 16]),
)
def test_any_shape(
    tmp_path: Path,
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int,
    pattern: int,
    lengths: list[int],
    block_size: int,
) -> None:
    sizes = {
        **SMALL,
        "hidden_size": 12 * kv_heads * group,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "sliding_window": window,
        "sliding_window_pattern": pattern,
    }
    config = Gemma3TextConfig(**sizes, rope_parameters=ROPES)
    check_family(tiny_model(config), tmp_path / "model", lengths=lengths, block_size=block_size, num_blocks=300)


def test_soft_caps(tmp_path: Path) -> None:
    config = Gemma3TextConfig(**SMALL, attn_logit_softcapping=1.5, final_logit_softcapping=2.0)
    reference = tiny_model(config)

    # transformers reads the attention cap of Gemma 3 but leaves it to the caller to pass it on.
    def with_cap(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "softcap": 1.5}

    for layer in reference.model.layers:
        layer.self_attn.register_forward_pre_hook(with_cap, with_kwargs=True)
    model = check_family(reference, tmp_path)
    assert (model.config.attention_soft_cap, model.config.final_soft_cap) == (1.5, 2.0)


def test_published_spelling_of_the_rotations(tmp_path: Path) -> None:
    """Files from before transformers 5: rope_theta and rope_scaling are global, rope_local_base_freq is local."""
    old: dict[str, Any] = {
        "rope_theta": 4096.0,
        "rope_local_base_freq": 64.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    reference = tiny_model(Gemma3TextConfig(**SMALL, **old))
    assert reference.config.rope_parameters == ROPES
    new = load(save(reference, tmp_path)).config
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types", "_sliding_window_pattern"):
        values.pop(key, None)
    path.write_text(json.dumps({**values, **old, "sliding_window_pattern": 2}))
    assert load(tmp_path).config == new


def test_defaults() -> None:
    silent = ("head_dim", "query_pre_attn_scalar", "rope_theta", "rope_local_base_freq", "sliding_window_pattern")
    config = hf("Gemma3ForCausalLM", num_hidden_layers=13, **dict.fromkeys(silent))
    assert config.head_dim == 256
    assert config.attention_scale == 1 / 16
    assert (config.rope.theta, config.local_rope and config.local_rope.theta) == (1e6, 1e4)
    assert config.windows == (5, 5, 5, 5, 5, None, 5, 5, 5, 5, 5, None, 5)
    assert config.embedding_scale == np.sqrt(np.float32(32))
    assert config.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias = True"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"sliding_window": None}, "sliding_window = None"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types = "),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "rope_parameters = .*rope_theta"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "rope_type = 'yarn'"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}}}, "partial_rotary_factor = 0.25"),
    ],
)
def test_unsupported_options(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        hf("Gemma3ForCausalLM", **changes)


def test_null_window_of_a_model_without_windowed_layers() -> None:
    config = hf("Gemma3ForCausalLM", sliding_window=None, layer_types=["full_attention"] * 2)
    assert config.windows == (None, None)


def test_image_models_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'Gemma3ForConditionalGeneration' is not supported"):
        find_family(Metadata({"architectures": ["Gemma3ForConditionalGeneration"]}))


GGUF = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 3,
    "gemma3.context_length": 128,
    "gemma3.embedding_length": 32,
    "gemma3.feed_forward_length": 56,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 2,
    "gemma3.attention.key_length": 12,
    "gemma3.attention.value_length": 12,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 5,
    "gemma3.rope.freq_base": 1e6,
    "gemma3.vocab_size": 99,
}


def from_gguf(**changes: Any) -> ModelConfig:
    own = {f"gemma3.{key}": value for key, value in changes.items()}
    return gemma3.FAMILY.from_gguf(Metadata({**GGUF, **own}, "gguf"))


def test_gguf_equals_safetensors(tmp_path: Path) -> None:
    """With every key that converters write; the file's attention scale is always the head size's."""
    config = Gemma3TextConfig(
        **{**SMALL, "query_pre_attn_scalar": 12, "num_hidden_layers": 7, "sliding_window_pattern": 6},
        rms_norm_eps=2**-20,
        final_logit_softcapping=2.0,
        rope_parameters={**ROPES, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    )
    folder = save(tiny_model(config), tmp_path / "hf")
    ours = load(folder)
    metadata: dict[str, int | float | str] = {
        "attention.sliding_window": 5,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "final_logit_softcapping": 2.0,
    }
    path = write_twin(
        folder, tmp_path / "twin.gguf", gemma3.FAMILY, ours.config, architecture="gemma3", metadata=metadata
    )
    twin = load_gguf(path)
    assert twin.config == ours.config
    assert twin.config.windows == (5, 5, 5, 5, 5, None, 5)
    assert_same(ours, twin)


def test_gguf_metadata() -> None:
    config = from_gguf()
    assert config.windows == (5, 5, 5)
    assert (config.rope.theta, config.local_rope) == (1e6, RopeConfig(1e4, 12))
    assert (config.attention_soft_cap, config.final_soft_cap) == (None, None)
    assert from_gguf(**{"attention.sliding_window": None}).windows == (None, None, None)
    assert from_gguf(**{"attention.sliding_window_pattern": 3}).windows == (5, 5, None)
    flags = np.array([False, True, False])
    assert from_gguf(**{"attention.sliding_window_pattern": flags}).windows == (None, 5, None)
    assert from_gguf(**{"rope.freq_base_swa": 50.0}).local_rope == RopeConfig(50.0, 12)
    assert from_gguf(final_logit_softcapping=30.0).final_soft_cap == 30.0
    assert from_gguf(final_logit_softcapping=0.0).final_soft_cap is None


def test_gguf_attention_scale() -> None:
    """The 27B model (62 layers) divides by the root of hidden size / heads, all others by that of the head size."""
    assert from_gguf().attention_scale == 12**-0.5
    assert from_gguf(block_count=62).attention_scale == 8**-0.5
    assert from_gguf(**{"block_count": 62, "attention.scale": 0.25}).attention_scale == 0.25


def test_broken_gguf_values() -> None:
    with pytest.raises(ModelFormatError, match="2 layers are described, but the model has 3"):
        from_gguf(**{"attention.sliding_window_pattern": np.array([True, False])})
    with pytest.raises(ModelFormatError, match=r"sliding_window_pattern must be a positive integer"):
        from_gguf(**{"attention.sliding_window_pattern": np.array([1, 0, 1])})
    with pytest.raises(ModelFormatError, match=r"gemma3\.rope\.freq_base is missing"):
        from_gguf(**{"rope.freq_base": None})


@pytest.mark.model
def test_gemma3_270m_configuration(gemma3_path: Path) -> None:
    checkpoint = open_gguf(gemma3_path)
    config = gemma3.FAMILY.from_gguf(checkpoint)
    checkpoint.close()
    assert config.windows == (*(512,) * 5, None) * 3
    assert config.tie_word_embeddings


@pytest.mark.model
def test_gemma3_270m_agrees_with_transformers(gemma3_path: Path) -> None:
    check_real_file(gemma3_path)
