"""SmolLM2-135M-Instruct, a Llama model in Q4_1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.real_file import check_real_file


@pytest.mark.model
def test_smollm2_agrees_with_transformers(smollm2_path: Path) -> None:
    check_real_file(smollm2_path)
