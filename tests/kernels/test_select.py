"""Choosing a backend."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys

import pytest

from slipstream.errors import ConfigError
from slipstream.kernels.select import ModelNeeds, backend_refusals, select_kernels

pytestmark = pytest.mark.fast


def test_reference_and_auto() -> None:
    assert select_kernels("reference").name == "reference"
    assert select_kernels("auto").name == "cpu"


def test_why_a_backend_does_not_run_a_model() -> None:
    assert list(backend_refusals(ModelNeeds(64)).items()) == [("cpu", None), ("reference", None)]
    for needs, reason in (
        (ModelNeeds(12), "multiples of 8 up to 256, not 12"),
        (ModelNeeds(264), "not 264"),
    ):
        refusals = backend_refusals(needs)
        assert reason in str(refusals["cpu"])
        assert refusals["reference"] is None


def test_a_backend_that_is_not_built() -> None:
    with pytest.raises(ConfigError, match="the triton backend is not part of this build"):
        select_kernels("triton")


def test_every_cpu_table_has_threads_of_its_own() -> None:
    assert select_kernels("cpu").name == "cpu"
    assert select_kernels("cpu", num_threads=1) is not select_kernels("cpu", num_threads=1)


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown backend 'cuda'\. Choose one of: auto, cpu, reference"):
        select_kernels("cuda")


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(ConfigError, match=r"pip install 'slipstream-llm\[torch\]'"):
        select_kernels("reference")


def test_the_table_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        select_kernels("reference").name = "x"  # type: ignore[misc]


def test_models_and_layers_import_no_torch() -> None:
    code = "import sys, slipstream.models.build, slipstream.kernels.select; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
