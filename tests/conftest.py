"""Fixtures that every room may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.config.env import read_environment
from slipstream.errors import ModelNotFoundError
from slipstream.hub.store import packed_dir, profiles_dir, resolve_model
from tests.tiny_folder import write_tiny_folder


def _pulled(model: str) -> Path:
    try:
        return resolve_model(model, read_environment().cache_dir)
    except ModelNotFoundError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(autouse=True)
def _nothing_of_tests_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Engines loaded in this process keep what they derive in the test's folder unless given a cache folder."""
    monkeypatch.setattr(
        "slipstream.engine.loading.packed_dir", lambda cache_dir: packed_dir(cache_dir or tmp_path / "cache")
    )
    monkeypatch.setattr(
        "slipstream.engine.loading.profiles_dir", lambda cache_dir: profiles_dir(cache_dir or tmp_path / "cache")
    )


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, a Llama model in Q4_1."""
    return _pulled("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, in Q4_K, Q5_0, Q6_K and Q8_0."""
    return _pulled("gemma3-270m")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama model with tokenizer and chat template; do not write into it."""
    return write_tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def steady_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step times that were kept are taken as they are, however fast the machine is at the moment."""
    monkeypatch.setattr("slipstream.engine.make_drafts.relative_speed", lambda *_, **__: 1.0)
