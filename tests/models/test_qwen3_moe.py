"""Qwen3 MoE against transformers, and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3MoeConfig

from slipstream.models import qwen3_moe
from slipstream.models.reader import Reader
from tests.models.gguf_twin import write_twin
from tests.models.harness import check_family, load, save, tiny_model
from tests.models.hf_configs import TINY
from tests.models.test_gguf_route import assert_same, load_gguf
from tests.models.test_llama import SIZES

pytestmark = pytest.mark.fast

MOE: dict[str, Any] = {
    **SIZES,
    "head_dim": 16,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}


@pytest.mark.parametrize("normalise", [False, True])
def test_qwen3_moe(tmp_path: Path, normalise: bool) -> None:
    model = check_family(tiny_model(Qwen3MoeConfig(**MOE, norm_topk_prob=normalise)), tmp_path)
    assert model.config.moe is not None
    assert model.config.moe.normalise is normalise
    assert model.config.moe.sparse_layers == {0, 1}


@pytest.mark.parametrize(
    ("options", "sparse"),
    [
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"mlp_only_layers": [0, 2]}, {1, 3}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {1}),
        ({"mlp_only_layers": [0, 1, 2, 3]}, set()),
    ],
)
def test_dense_layers_in_between(tmp_path: Path, options: dict[str, Any], sparse: set[int]) -> None:
    config = Qwen3MoeConfig(**{**MOE, "num_hidden_layers": 4}, **options)
    model = check_family(tiny_model(config), tmp_path, lengths=(11, 2))
    assert model.config.moe is not None
    assert model.config.moe.sparse_layers == sparse


def test_one_window_for_all_layers(tmp_path: Path) -> None:
    model = check_family(tiny_model(Qwen3MoeConfig(**MOE, use_sliding_window=True, sliding_window=6)), tmp_path)
    assert model.config.windows == (6, 6)


def test_both_names_of_the_number_of_experts_are_read() -> None:
    published = {"architectures": ["Qwen3MoeForCausalLM"], **TINY["Qwen3MoeForCausalLM"], "num_experts": 7}
    renamed = {("num_local_experts" if key == "num_experts" else key): value for key, value in published.items()}
    for values in (published, renamed):
        moe = qwen3_moe.FAMILY.from_hf(Reader(values, "config.json")).moe
        assert moe is not None
        assert moe.num_experts == 7


@pytest.mark.parametrize("stated", [False, True])
def test_gguf_equals_safetensors(tmp_path: Path, stated: bool) -> None:
    """Without its own key an expert's size is the dense size divided by the number of experts used."""
    wide = 24 if stated else 56 // 3
    options = {**MOE, "rms_norm_eps": 2**-20, "moe_intermediate_size": wide, "norm_topk_prob": True}
    folder = save(tiny_model(Qwen3MoeConfig(**options)), tmp_path / "hf")
    ours = load(folder)
    metadata: dict[str, int | float | str] = {"expert_count": 5, "expert_used_count": 3}
    if stated:
        metadata["expert_feed_forward_length"] = wide
    path = tmp_path / "twin.gguf"
    write_twin(folder, path, qwen3_moe.FAMILY, ours.config, architecture="qwen3moe", metadata=metadata)
    twin = load_gguf(path)
    assert twin.config == ours.config
    assert_same(ours, twin)
