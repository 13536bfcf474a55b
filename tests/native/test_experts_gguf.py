"""Models whose experts are stacked and quantised in a GGUF file, natively and on the reference backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import MixtralConfig, Qwen3MoeConfig

from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.models import mixtral, qwen3_moe
from slipstream.models.build import load_model
from slipstream.models.family import Family
from slipstream.weights.formats.gguf import open_gguf
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.gguf_twin import write_twin
from tests.models.harness import random_prompts, save, tiny_model
from tests.models.paged import PagedRunner, run_chunks, run_whole
from tests.native.test_program import SIZES

pytestmark = pytest.mark.fast
WIDE: dict[str, Any] = {**SIZES, "hidden_size": 64, "rms_norm_eps": 2**-20}


def runner(path: Path, kernels: Kernels, **options: Any) -> PagedRunner:
    checkpoint = open_gguf(path) if path.is_file() else open_safetensors(path)
    model = load_model(checkpoint, kernels, max_position=128)
    checkpoint.close()
    return PagedRunner(model, kernels, **options)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q5_1", "Q4_0", "F16"])
@pytest.mark.parametrize(
    ("config", "family", "architecture", "metadata"),
    [
        (
            MixtralConfig(**WIDE, num_local_experts=5, num_experts_per_tok=2),
            mixtral.FAMILY,
            "llama",
            {"expert_count": 5, "expert_used_count": 2},
        ),
        (
            Qwen3MoeConfig(**WIDE, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True),
            qwen3_moe.FAMILY,
            "qwen3moe",
            {"expert_count": 7, "expert_used_count": 3, "expert_feed_forward_length": 32},
        ),
    ],
    ids=["mixtral", "qwen3moe"],
)
def test_stacked_experts(
    tmp_path: Path, config: Any, family: Family, architecture: str, metadata: dict[str, int | float | str], dtype: str
) -> None:
    folder = save(tiny_model(config), tmp_path / "hf")
    reference, kernels = select_kernels("reference"), cpu_kernels(2)
    source = open_safetensors(folder)
    path = write_twin(
        folder, tmp_path / "twin.gguf", family, load_model(source, reference, max_position=128).config,
        architecture=architecture, metadata=metadata, experts_as=dtype,
    )  # fmt: skip
    source.close()
    (prompt,) = random_prompts(77, [60])
    whole = run_whole(runner(path, kernels, block_size=8), "a", prompt)
    expected = run_whole(runner(path, reference, block_size=8), "a", prompt)
    cosine = (whole * expected).sum(axis=1) / np.linalg.norm(whole, axis=1) / np.linalg.norm(expected, axis=1)
    # With int8 activations a token that wavers between two experts may take the other one.
    assert np.median(cosine) > (0.999999 if dtype == "F16" else 0.999)
    if dtype == "F16":
        np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    for size, threads in ((1, 1), (7, 2), (60, 3)):
        again = runner(path, cpu_kernels(threads), block_size=4, shuffle=size)
        np.testing.assert_array_equal(run_chunks(again, "a", prompt, size), whole)
