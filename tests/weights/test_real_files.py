"""The model files that `slipstream pull` fetches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.weights.open import open_checkpoint
from slipstream.weights.summary import summarize

from .files import reference_values

pytestmark = pytest.mark.model


def test_smollm2(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    summary = summarize(checkpoint)
    assert (summary.num_tensors, summary.num_parameters) == (272, 134_515_008)
    assert {total.dtype for total in summary.by_dtype} == {"Q4_1", "Q8_0", "F32"}
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 49_152
    assert checkpoint.tensors["token_embd.weight"].shape == (49_152, 576)


def test_gemma3(gemma3_path: Path) -> None:
    checkpoint = open_checkpoint(gemma3_path)
    summary = summarize(checkpoint)
    assert (summary.num_tensors, summary.num_parameters) == (236, 268_098_176)
    assert checkpoint.metadata["general.architecture"] == "gemma3"
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert checkpoint.metadata["tokenizer.ggml.scores"].shape == (262_144,)


@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path"])
def test_one_tensor_of_every_type_equals_the_reference_bits(fixture: str, request: pytest.FixtureRequest) -> None:
    """Its first 300 rows, real scales and all. (The gguf package's own file reader would take many seconds.)"""
    checkpoint = open_checkpoint(request.getfixturevalue(fixture))
    first = {info.dtype: info for info in reversed(checkpoint.tensors.values())}
    assert len(first) >= 3
    for info in first.values():
        rows = min(info.shape[0], 300)
        raw = checkpoint.raw(info.name)[: rows * info.nbytes // info.shape[0]]
        values = checkpoint.read(info.name, (0, rows))
        np.testing.assert_array_equal(values.ravel().view(np.uint32), reference_values(raw, info.dtype).view(np.uint32))
        assert np.isfinite(values).all()
