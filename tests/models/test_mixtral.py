"""Mixtral against transformers, and from GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import MixtralConfig

from slipstream.errors import ModelFormatError
from slipstream.models import llama, mixtral
from slipstream.models.registry import find_family
from tests.models.gguf_twin import write_twin
from tests.models.harness import check_family, load, save, tiny_model
from tests.models.test_gguf_route import assert_same, load_gguf
from tests.models.test_llama import SIZES
from tests.models.test_refusals import EXPERTS, GGUF, Metadata

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (3, 3), (5, 1)])
def test_mixtral(tmp_path: Path, experts: int, top_k: int) -> None:
    config = MixtralConfig(**SIZES, num_local_experts=experts, num_experts_per_tok=top_k)
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.moe is not None
    assert (model.config.moe.num_experts, model.config.moe.top_k) == (experts, top_k)
    assert model.config.moe.sparse_layers == {0, 1}


def test_window_and_own_head_size(tmp_path: Path) -> None:
    config = MixtralConfig(**SIZES, num_local_experts=4, sliding_window=6, head_dim=12, tie_word_embeddings=True)
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.windows == (6, 6)
    assert model.config.head_dim == 12


def write(tmp_path: Path, metadata: Mapping[str, int | float | str]) -> tuple[Path, Path]:
    folder = save(tiny_model(MixtralConfig(**SIZES, rms_norm_eps=2**-20, num_local_experts=4)), tmp_path / "hf")
    path = tmp_path / "twin.gguf"
    config = load(folder).config
    return folder, write_twin(folder, path, mixtral.FAMILY, config, architecture="llama", metadata=dict(metadata))


def test_gguf_equals_safetensors(tmp_path: Path) -> None:
    folder, path = write(tmp_path, {"expert_count": 4, "expert_used_count": 2})
    ours, twin = load(folder), load_gguf(path)
    assert twin.config == ours.config
    assert_same(ours, twin)


def test_a_wrong_number_of_experts_is_refused(tmp_path: Path) -> None:
    _, path = write(tmp_path, {"expert_count": 3, "expert_used_count": 2})
    with pytest.raises(ModelFormatError, match=r"blk\.0\.ffn_gate_inp\.weight has the shape \(4, 32\)"):
        load_gguf(path)


@pytest.mark.parametrize(
    ("changes", "family"), [({}, llama.FAMILY), ({"llama.expert_count": 0}, llama.FAMILY), (EXPERTS, mixtral.FAMILY)]
)
def test_experts_decide_who_reads_a_llama_file(changes: dict[str, Any], family: Any) -> None:
    assert find_family(Metadata({**GGUF, **changes}, "gguf")) is family
