from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.training.features import HiddenStates
from slipstream.training.target import read_target
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.paged import PagedRunner
from tests.training.heads import random_embedding, stored_walks

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_they_are_what_the_logits_come_from(tiny_folder: Path, backend: str) -> None:
    kernels = select_kernels(backend, num_threads=1)
    checkpoint = open_safetensors(tiny_folder)
    model = load_model(checkpoint, kernels)
    target = read_target(checkpoint)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 259, length).astype(np.int32) for length in (3, 1, 17, 130, 40, 600, 2)]
    sequences = [each[:250] for each in sequences]
    compute = HiddenStates(model, kernels, max_length=250, kv_dtype="float32")
    found = compute(sequences)
    assert [each.shape for each in found] == [(len(each), 32) for each in sequences]
    for sequence, hidden in zip(sequences, found, strict=True):
        [alone] = compute([sequence])
        np.testing.assert_array_equal(hidden, alone)
        runner = PagedRunner(model, kernels, block_size=16)
        if kernels.compile is not None:
            runner._model = kernels.compile(model, runner.kv)
        expected = runner.step({"a": sequence.tolist()})["a"]
        normed = hidden / np.sqrt((hidden**2).mean(1, keepdims=True) + 1e-5) * target.norm
        tolerance = 1e-4 if backend == "reference" else 0.15  # it multiplies int8 activations
        np.testing.assert_allclose(normed @ target.head.T, expected, atol=tolerance)


def test_stored_features_are_close_and_kept(tmp_path: Path) -> None:
    embedding = random_embedding()
    stored = stored_walks(tmp_path, embedding, count=70)
    files = {path: path.stat().st_ino for path in tmp_path.glob("features-*")}
    assert len(files) == 2
    again = stored_walks(tmp_path, embedding, count=70)
    assert {path: path.stat().st_ino for path in files} == files
    for one, two in zip(stored, again, strict=True):
        np.testing.assert_array_equal(one.read(), two.read())
        assert one.read().shape == (len(one.answer.tokens), 16)
    stored_walks(tmp_path, embedding, count=69)
    changed = [path for path in files if path.stat().st_ino != files[path]]
    assert [path.name for path in changed] == ["features-00001.safetensors"]
