"""Qwen2 against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen2Config

from tests.models.harness import check_family, tiny_model
from tests.models.test_llama import SIZES

pytestmark = pytest.mark.fast


def test_qwen2(tmp_path: Path) -> None:
    model = check_family(tiny_model(Qwen2Config(**SIZES)), tmp_path)
    assert model.config.attention_bias
    assert model.config.windows == (None, None)


def test_window_on_the_late_layers_only(tmp_path: Path) -> None:
    config = Qwen2Config(
        **SIZES, tie_word_embeddings=True, use_sliding_window=True, sliding_window=6, max_window_layers=1
    )
    model = check_family(tiny_model(config), tmp_path)
    assert model.config.windows == (None, 6)
