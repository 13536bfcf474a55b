"""A real GGUF file against an independent dequantised run by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils.logging import disable_progress_bar

from slipstream.models.build import load_model
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.weights.formats.gguf import open_gguf
from tests.models.harness import KERNELS, expected_logits
from tests.models.paged import PagedRunner, run_whole

POSITIONS = 200
TEXT = Path(__file__).parents[2] / "LICENSE"


def transformers_model(path: Path) -> Any:
    """The same file through transformers and the gguf package, whose dequantiser and name tables are not ours.

    AutoModelForCausalLM.from_pretrained(gguf_file=...) does these steps too, but asks for one more package.
    """
    disable_progress_bar()
    config = AutoConfig.for_model(**load_gguf_checkpoint(path)["config"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config.tie_word_embeddings else [])
    model.tie_weights()
    return model


def check_real_file(path: Path) -> None:
    """Over POSITIONS positions of real text: cosine of the logits above 0.9999 and the same most likely token."""
    checkpoint = open_gguf(path)
    tokens = tokenizer_from_gguf(checkpoint.metadata).encode(TEXT.read_text())[:POSITIONS]
    assert len(tokens) == POSITIONS
    model = load_model(checkpoint, KERNELS, max_position=POSITIONS)
    checkpoint.close()
    ours = run_whole(PagedRunner(model, KERNELS, block_size=16, num_blocks=-(-POSITIONS // 16)), "a", tokens)
    del model

    theirs = transformers_model(path)
    expected = expected_logits(theirs, tokens)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (ours * expected).sum(axis=1) / norms
    assert cosines.min() > 0.9999
    np.testing.assert_array_equal(ours.argmax(axis=1), expected.argmax(axis=1))
