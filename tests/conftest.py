"""Fixtures that every room may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from platformdirs import user_cache_dir


def _pulled(file_name: str, model: str) -> Path:
    path = Path(user_cache_dir("slipstream")) / "models" / file_name
    if not path.is_file():
        pytest.fail(f"{path} is not there; fetch it with `slipstream pull {model}`", pytrace=False)
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, a Llama model in Q4_1."""
    return _pulled("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, in Q4_K, Q5_0, Q6_K and Q8_0."""
    return _pulled("gemma-3-270m-q4_k_m.gguf", "gemma3-270m")
