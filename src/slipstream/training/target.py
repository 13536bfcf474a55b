"""What training needs of the target besides the engine: its embedding, its output head, its last norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import UnsupportedModelError
from slipstream.models.config import ModelConfig
from slipstream.models.fingerprint import model_fingerprint
from slipstream.models.registry import find_family, read_config
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.loader import read_source
from slipstream.weights.match import match_slots

Floats = NDArray[np.float32]

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """embedding and head [vocab, hidden] (one array where they are tied), norm [hidden]."""

    config: ModelConfig
    fingerprint: str
    embedding: Floats
    head: Floats
    norm: Floats


def refuse_unsupported(config: ModelConfig) -> None:
    """Raises UnsupportedModelError for a target for which no head is described."""
    if config.final_soft_cap is not None:
        raise UnsupportedModelError("a draft head for a model that caps its logits is not there.", where="MODEL")


def read_target(checkpoint: Checkpoint) -> Target:
    """Raises ModelError as loading the model would, and UnsupportedModelError."""
    family = find_family(checkpoint)
    config = read_config(family, checkpoint)
    refuse_unsupported(config)
    found: dict[str, Floats] = {}
    for source in match_slots(family.slots(config), checkpoint, ignore=family.ignorable):
        if source.slot.name in (_EMBEDDING, _HEAD, _NORM):
            found[source.slot.name] = read_source(source, checkpoint)
    embedding = found[_EMBEDDING]
    head = embedding if config.tie_word_embeddings else found[_HEAD]
    return Target(config, model_fingerprint(checkpoint), embedding, head, found[_NORM])
