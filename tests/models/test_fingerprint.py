from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slipstream.models import llama
from slipstream.models.fingerprint import model_fingerprint
from slipstream.models.registry import read_config
from slipstream.weights.formats.gguf import open_gguf
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.gguf_twin import write_twin
from tests.tiny_folder import WEIGHTS, write_tiny_folder

pytestmark = pytest.mark.fast


def fingerprint(folder: Path) -> str:
    checkpoint = open_safetensors(folder)
    try:
        return model_fingerprint(checkpoint)
    finally:
        checkpoint.close()


def change(folder: Path, name: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[name] = tensors[name] + np.float32(0.05)
    save_file(tensors, folder / WEIGHTS)


def test_matrices_do_not_count_and_the_last_norm_does(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "a")
    first = fingerprint(folder)
    assert len(first) == 32
    change(folder, "model.layers.0.mlp.up_proj.weight")
    assert fingerprint(folder) == first
    change(folder, "model.norm.weight")
    assert fingerprint(folder) != first
    assert fingerprint(write_tiny_folder(tmp_path / "b", seed=1)) != first
    assert fingerprint(write_tiny_folder(tmp_path / "c", num_attention_heads=2, num_key_value_heads=1)) != first


def test_a_gguf_file_has_the_same(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "a", rms_norm_eps=2**-20)
    source = open_safetensors(folder)
    path = write_twin(
        folder, tmp_path / "a.gguf", llama.FAMILY, read_config(llama.FAMILY, source), architecture="llama"
    )
    twin = open_gguf(path)
    assert model_fingerprint(twin) == model_fingerprint(source)
    twin.close()
    source.close()
