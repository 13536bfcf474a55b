"""What is trained is what drafts: the module in PyTorch against the model that the engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.select import select_kernels
from slipstream.kv.storage import KVStorage
from slipstream.layers.embedding import Embedding, LMHead
from slipstream.layers.rope import RopeConfig
from slipstream.models.draft_head import DraftHead, bind_head, head_kv_spec
from slipstream.models.draft_head_file import read_draft_head
from slipstream.training.head_config import write_head
from tests.training.heads import CONFIG, DRAFTED, HIDDEN, random_embedding, random_head

pytestmark = pytest.mark.fast

LENGTH = 12


def test_drafts_of_two_tokens_have_the_modules_numbers(tmp_path: Path) -> None:
    trained = random_head()
    ids = np.arange(DRAFTED, dtype=np.int32)
    write_head(tmp_path, CONFIG, dict(trained.arrays()), ids, {"name": "tiny", "fingerprint": "f"})
    file = read_draft_head(tmp_path)
    assert file.config.rope == RopeConfig(CONFIG.rope_theta, CONFIG.head_dim)
    trained.load(file.weights)  # as float16 left them
    kernels, embedding = select_kernels("reference"), random_embedding()
    served = DraftHead(
        file.config,
        kernels,
        bind_head(file, kernels),
        Embedding(kernels, kernels.bind("embedding", embedding), 1.0),
        LMHead(kernels, kernels.bind("linear", embedding[ids])),
        64,
    )
    spec = head_kv_spec(file.config, block_size=4, dtype="float32")
    kv = KVStorage(spec, 4, kernels.new_kv(spec, 4))

    def step(tokens: np.ndarray[Any, Any], states: np.ndarray[Any, Any], start: int) -> tuple[Any, Any]:
        at = np.arange(start, start + len(tokens), dtype=np.int32)
        ends = np.array([start + len(tokens)], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        starts, table = np.array([0, len(tokens)], np.int32), np.arange(4, dtype=np.int32)[None]
        logits, made = served(ForwardBatch(tokens, at, at, starts, ends, table, rows, states), kv)
        return kernels.to_numpy(logits), kernels.to_numpy(made)

    rng = np.random.default_rng(0)
    states = rng.standard_normal((LENGTH, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, len(embedding), LENGTH + 1).astype(np.int32)
    with torch.no_grad():
        first, second = trained(torch.from_numpy(states)[None], torch.from_numpy(embedding[tokens[1:]])[None], 2)
        rows = torch.from_numpy(embedding[ids])
        expected = [(trained.normed(each[0]) @ rows.T).numpy() for each in (first, second)]
    for start in (3, 9):
        logits, made = step(tokens[1 : start + 2], states[: start + 1], 0)
        np.testing.assert_allclose(logits, expected[0][: start + 1], atol=1e-4)
        logits, _ = step(tokens[start + 2 : start + 3], made[-1:], start + 1)
        np.testing.assert_allclose(logits[0], expected[1][start + 1], atol=1e-4)
