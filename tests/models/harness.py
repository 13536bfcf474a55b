"""One runner for every family: our model against transformers, and against itself under other batchings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.models.family import Model
from slipstream.weights.formats.safetensors import open_safetensors
from tests.models.paged import PagedRunner, run_chunks, run_whole

KERNELS = select_kernels("reference")
TOLERANCE = 1e-4


def tiny_model(config: Any, seed: int = 0) -> Any:
    """A transformers model of `config` whose random weights are large enough for every part to matter."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif "norm" in name:
                parameter.add_(noise * 0.2)
            else:
                parameter.copy_(noise * 0.5)
    return model


def save(hf_model: Any, folder: Path) -> Path:
    disable_progress_bar()
    hf_model.save_pretrained(folder)
    return folder


def load(folder: Path, *, max_position: int | None = None) -> Model:
    checkpoint = open_safetensors(folder)
    model = load_model(checkpoint, KERNELS, max_position=max_position)
    checkpoint.close()
    return model


def expected_logits(hf_model: Any, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """[tokens, vocab] of one sequence by itself."""
    with torch.no_grad():
        logits = hf_model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return np.asarray(logits.float().numpy())


def random_prompts(vocab_size: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def check_family(
    hf_model: Any,
    folder: Path,
    *,
    lengths: Sequence[int] = (23, 1, 9),
    block_size: int = 4,
    num_blocks: int = 64,
    seed: int = 0,
) -> Model:
    """Save `hf_model`, load it as ours, and compare; returns ours.

    Logits agree with transformers to TOLERANCE for whole prompts. Token-by-token decoding, odd chunks, a batch of
    unequal lengths and shuffled blocks must give exactly the numbers of the whole prompts.
    """
    model = load(save(hf_model, folder))
    prompts = random_prompts(model.config.vocab_size, lengths, seed)

    def runner(shuffle: int | None = None) -> PagedRunner:
        return PagedRunner(model, KERNELS, block_size=block_size, num_blocks=num_blocks, shuffle=shuffle)

    whole = [run_whole(runner(), "a", prompt) for prompt in prompts]
    for logits, prompt in zip(whole, prompts, strict=True):
        expected = expected_logits(hf_model, prompt)
        assert expected.std() > 0.1, "logits so small that the tolerance would hide an error"
        np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)

    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    np.testing.assert_array_equal(run_chunks(runner(), "a", prompts[longest], 1), whole[longest])
    np.testing.assert_array_equal(run_chunks(runner(shuffle=1), "a", prompts[longest], 5), whole[longest])
    check_batched(runner(shuffle=2), prompts, whole)
    return model


def check_batched(runner: PagedRunner, prompts: Sequence[Sequence[int]], whole: Sequence[np.ndarray[Any, Any]]) -> None:
    """All but the last token of every prompt in one ragged batch, then the last ones together: the same numbers."""
    first = {str(i): prompt[:-1] for i, prompt in enumerate(prompts) if len(prompt) > 1}
    prefilled = runner.step(first) if first else {}
    last = runner.step({str(i): prompt[-1:] for i, prompt in enumerate(prompts)})
    for i, logits in enumerate(whole):
        if str(i) in prefilled:
            np.testing.assert_array_equal(prefilled[str(i)], logits[:-1])
        np.testing.assert_array_equal(last[str(i)], logits[-1:])
