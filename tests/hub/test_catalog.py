from __future__ import annotations

import re

import pytest

from slipstream.hub.catalog import KNOWN_MODELS, KnownModel, known_model, nearest_names

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda model: model.name)
def test_everything_is_pinned(model: KnownModel) -> None:
    assert re.fullmatch("[0-9a-f]{64}", model.sha256)
    assert all(re.fullmatch("[0-9a-f]{64}", wheel.sha256) for wheel in model.wheels)
    assert len({wheel.sha256 for wheel in model.wheels}) == len(model.wheels)
    assert all(re.fullmatch(r"\d+(\.\d+)*", wheel.version) for wheel in model.wheels)
    assert any(wheel.documents for wheel in model.wheels), "no licence text is kept"
    assert model.file_name.endswith(".gguf")


def test_sizes() -> None:
    assert {model.name: (model.num_bytes, model.download_bytes) for model in KNOWN_MODELS} == {
        "smollm2": (98_362_432, 92_871_040),
        "gemma3-270m": (253_113_024, 238_203_400),
    }


def test_names_ignore_case_and_near_ones_are_found() -> None:
    assert known_model("SmolLM2") is KNOWN_MODELS[0]
    assert known_model("smollm") is None
    assert nearest_names("SmolLM") == ["smollm2"]
    assert nearest_names("gemma3") == ["gemma3-270m"]
    assert nearest_names("zzz") == []
