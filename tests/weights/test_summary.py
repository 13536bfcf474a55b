from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.weights.formats.gguf import open_gguf
from slipstream.weights.summary import CheckpointSummary, DtypeTotal, summarize

from .fake_checkpoint import FakeCheckpoint
from .files import random_blocks, write_gguf

pytestmark = pytest.mark.fast


def test_totals_by_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "norm": np.zeros(16, np.float32),
        "a": random_blocks("Q4_0", (4, 64), rng),
        "b": random_blocks("Q4_0", (2, 32), rng),
        "c": random_blocks("Q6_K", (3, 256), rng),
    }
    path = write_gguf(tmp_path / "m.gguf", tensors, types={"a": "Q4_0", "b": "Q4_0", "c": "Q6_K"})
    assert summarize(open_gguf(path)) == CheckpointSummary(
        num_tensors=4,
        num_parameters=16 + 256 + 64 + 768,
        nbytes=64 + 180 + 630,
        by_dtype=(
            DtypeTotal("Q6_K", 1, 768, 630),
            DtypeTotal("Q4_0", 2, 320, 180),
            DtypeTotal("F32", 1, 16, 64),
        ),
    )


def test_bits_per_parameter() -> None:
    assert DtypeTotal("Q4_0", 1, 320, 180).bits_per_parameter == 4.5
    assert DtypeTotal("F32", 1, 0, 0).bits_per_parameter == 0.0


def test_no_tensor_is_read() -> None:
    checkpoint = FakeCheckpoint({"w": np.zeros((2, 3), np.float32)}, "safetensors")
    assert summarize(checkpoint).num_parameters == 6
    assert checkpoint.reads == []
