"""What the head sees at each position, and in which order sequences are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.training.features import Stored
from slipstream.training.target import Target

Floats = NDArray[np.float32]

WINDOW = 128  # sequences among which those of like length are put together


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of at most T + 1 tokens; position i has the feature of token i, the embedding of token i + 1, and
    is to give the feature of token i + 1 and with it the distribution of token i + 2."""

    features: Floats  # [B, T, hidden]
    embeddings: Floats  # [B, T, hidden]
    wanted: Floats  # [B, T, hidden]
    weights: Floats  # [B, T]; 0: padding


def make_batch(stored: Sequence[Stored], target: Target, prompt_weight: float) -> Batch:
    """Positions of the prompt, the last one aside, have this weight, those of the answer 1."""
    embedding, scale = target.embedding, np.float32(target.config.embedding_scale)
    width = max(len(each.answer.tokens) for each in stored) - 1
    shape = (len(stored), width, embedding.shape[1])
    features, embeddings, wanted = (np.zeros(shape, np.float32) for _ in range(3))
    weights = np.zeros(shape[:2], np.float32)
    for row, each in enumerate(stored):
        hidden, count = each.read(), len(each.answer.tokens) - 1
        features[row, :count], wanted[row, :count] = hidden[:-1], hidden[1:]
        embeddings[row, :count] = embedding[each.answer.tokens[1:]] * scale
        weights[row, :count] = prompt_weight
        weights[row, each.answer.prompt_length - 1 : count] = 1.0
    return Batch(features, embeddings, wanted, weights)


def epoch_order(lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of the sequences of each batch of an epoch: as many of about equal length as have `tokens` positions,
    padding included. A function of its arguments alone."""
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths)).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        batch: list[int] = []
        for place in sorted(order[start : start + WINDOW], key=lambda each: lengths[each]):
            if batch and (len(batch) + 1) * lengths[place] > tokens:
                batches.append(batch)
                batch = []
            batch.append(place)
        batches.append(batch)
    return [batches[each] for each in rng.permutation(len(batches))]
