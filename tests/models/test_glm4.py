"""GLM-4 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Glm4Config, GlmConfig

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.layers.rope import RopeConfig
from slipstream.models import glm4
from slipstream.models.registry import find_family
from tests.models.gguf_twin import write_twin
from tests.models.harness import check_family, load, save, tiny_model
from tests.models.test_gguf_route import assert_same, load_gguf
from tests.models.test_llama import SIZES
from tests.models.test_refusals import Metadata, hf

SMALL: dict[str, Any] = {**SIZES, "head_dim": 12, "pad_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [GlmConfig, Glm4Config])
def test_glm(tmp_path: Path, kind: Any, bias: bool) -> None:
    model = check_family(tiny_model(kind(**SMALL, attention_bias=bias)), tmp_path)
    assert model.config.sandwich_norm == (kind is Glm4Config)
    assert model.config.attention_bias == bias
    assert model.config.rope == RopeConfig(10000.0, 6, interleaved=True)


@pytest.mark.parametrize(("factor", "rotary_dim"), [(1.0, 12), (0.34, 4)])
def test_rotary_factor(tmp_path: Path, factor: float, rotary_dim: int) -> None:
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": factor}
    model = check_family(tiny_model(Glm4Config(**SMALL, rope_parameters=rope)), tmp_path, lengths=(70, 4))
    assert model.config.rope.rotary_dim == rotary_dim


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
    ids=["linear", "yarn"],
)
def test_scaling_of_a_partial_rotation(tmp_path: Path, rope: dict[str, Any]) -> None:
    config = Glm4Config(**SMALL, rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5, **rope})
    model = check_family(tiny_model(config), tmp_path, lengths=(90, 3))
    assert (model.config.rope.kind, model.config.rope.rotary_dim) == (rope["rope_type"], 6)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gguf_equals_safetensors(tmp_path: Path, bias: bool, tied: bool) -> None:
    config = Glm4Config(**SMALL, rms_norm_eps=2**-20, attention_bias=bias, tie_word_embeddings=tied)
    folder = save(tiny_model(config), tmp_path / "hf")
    ours = load(folder)
    twin = load_gguf(write_twin(folder, tmp_path / "twin.gguf", glm4.FAMILY, ours.config, architecture="glm4"))
    assert twin.config == ours.config
    assert_same(ours, twin)


def test_published_spelling_of_the_rotation() -> None:
    assert hf("Glm4ForCausalLM", partial_rotary_factor=None).rope.rotary_dim == 4
    assert hf("Glm4ForCausalLM", partial_rotary_factor=0.25).rope.rotary_dim == 2
    with pytest.raises(ModelFormatError, match="3 rotary dimensions do not fit a head of 8"):
        hf("Glm4ForCausalLM", partial_rotary_factor=0.4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"glm4.nextn_predict_layers": 1}, "glm4.nextn_predict_layers = 1"),
        ({"glm4.rope.dimension_sections": [8, 12, 12, 0]}, "glm4.rope.dimension_sections = "),
    ],
)
def test_unsupported_gguf_options(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        glm4.FAMILY.from_gguf(Metadata({"general.architecture": "glm4", **changes}, "gguf"))


def test_chatglm_files_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'chatglm' is not supported.*glm4"):
        find_family(Metadata({"general.architecture": "chatglm"}, "gguf"))
    with pytest.raises(UnsupportedModelError, match=r"'ChatGLMModel' is not supported.*Glm4ForCausalLM"):
        find_family(Metadata({"architectures": ["ChatGLMModel"]}))
