"""Small heads, sequences and stored features for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.layers.rope import RopeConfig
from slipstream.models.config import ModelConfig
from slipstream.training.answers import Answer
from slipstream.training.examples import Batch, make_batch
from slipstream.training.features import Stored, write_features
from slipstream.training.head_config import HeadConfig
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import Teacher
from slipstream.training.progress import stage
from slipstream.training.target import Target

HIDDEN, VOCAB, DRAFTED = 16, 40, 24

TARGET = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    rope=RopeConfig(10000.0, 8),
    windows=(None,),
    attention_scale=8**-0.5,
)
CONFIG = HeadConfig.for_target(TARGET, DRAFTED)


def random_head(seed: int = 0, max_length: int = 64) -> DraftHead:
    head = DraftHead(CONFIG, max_length)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else noise * parameter.shape[1] ** -0.5)
    return head


def random_teacher(embedding: NDArray[np.float32]) -> Teacher:
    return Teacher(torch.from_numpy(embedding[:DRAFTED]), torch.ones(HIDDEN), 1e-5)


def random_embedding(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((VOCAB, HIDDEN), dtype=np.float32)


def stored_walks(folder: Path, embedding: NDArray[np.float32], count: int = 6, seed: int = 0) -> list[Stored]:
    """Answers of random lengths whose features follow from token and place, so that a head can learn them."""
    rng = np.random.default_rng(seed)
    turn = rng.standard_normal((HIDDEN, HIDDEN)).astype(np.float32) * HIDDEN**-0.5
    answers = [
        Answer(
            index=index,
            domain="even" if index % 2 == 0 else "odd",
            tokens=rng.integers(0, DRAFTED, int(rng.integers(9, 30))).astype(np.int32),
            prompt_length=int(rng.integers(1, 6)),
            temperature=float(index % 2),
            seed=index,
            held_out=index == 0,
        )
        for index in range(count)
    ]

    def features(sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        return [np.tanh(embedding[tokens] @ turn) + 0.5 * embedding[tokens] for tokens in sequences]

    with stage("Features", 1, quiet=True) as bar:
        return write_features(answers, features, folder, bar)


def batches_of(embedding: NDArray[np.float32]) -> Callable[[Sequence[Stored]], Batch]:
    target = Target(TARGET, "", embedding, embedding, np.ones(HIDDEN, np.float32))
    return lambda some: make_batch(some, target, 0.5)
