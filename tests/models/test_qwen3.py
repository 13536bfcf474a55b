"""Qwen3 (dense) against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen3Config

from tests.models.harness import check_family, tiny_model
from tests.models.test_llama import SIZES

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("head_dim", [8, 24])
def test_qwen3(tmp_path: Path, head_dim: int) -> None:
    model = check_family(tiny_model(Qwen3Config(**SIZES, head_dim=head_dim)), tmp_path)
    assert model.config.qk_norm
    assert model.config.head_dim == head_dim


def test_window_on_the_late_layers_only(tmp_path: Path) -> None:
    config = Qwen3Config(
        **SIZES, head_dim=16, tie_word_embeddings=True, use_sliding_window=True, sliding_window=6, max_window_layers=1
    )
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.windows == (None, 6)
