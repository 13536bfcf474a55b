"""Real files on the CPU backend: int8 activations against the reference's float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.weights.formats.gguf import open_gguf
from tests.models.paged import PagedRunner, run_chunks, run_whole

POSITIONS = 192
TEXT = Path(__file__).parents[2] / "LICENSE"


def check(path: Path, *, cosine: float, agreement: float) -> None:
    """Mean cosine of the logits and top-1 agreement at least so; chunks and threads change no bit."""
    checkpoint = open_gguf(path)
    tokens = tokenizer_from_gguf(checkpoint.metadata).encode(TEXT.read_text())[:POSITIONS]
    assert len(tokens) == POSITIONS
    kernels = cpu_kernels(2)
    model = load_model(checkpoint, kernels, max_position=POSITIONS)
    single = cpu_kernels(1)
    alone = load_model(checkpoint, single, max_position=POSITIONS)
    ours = run_whole(PagedRunner(model, kernels, block_size=16, dtype="float16"), "a", tokens)
    np.testing.assert_array_equal(
        run_chunks(PagedRunner(alone, single, block_size=16, dtype="float16", shuffle=1), "a", tokens, 50), ours
    )
    reference = select_kernels("reference")
    plain = load_model(checkpoint, reference, max_position=POSITIONS)
    checkpoint.close()
    expected = run_whole(PagedRunner(plain, reference, block_size=16), "a", tokens)
    cosines = (ours * expected).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.mean() > cosine, np.sort(cosines)[:8]
    assert (ours.argmax(axis=1) == expected.argmax(axis=1)).mean() >= agreement


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    check(smollm2_path, cosine=0.99, agreement=0.95)


@pytest.mark.model
def test_gemma3(gemma3_path: Path) -> None:
    check(gemma3_path, cosine=0.99, agreement=0.92)
