"""What a draft head must have been trained for."""

from __future__ import annotations

import hashlib

import numpy as np

from slipstream.models.registry import find_family, read_config
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.loader import read_source
from slipstream.weights.match import match_slots

_NORM = "model.norm.weight"


def model_fingerprint(checkpoint: Checkpoint) -> str:
    """32 hexadecimal digits: the same for all files of one model, whatever their format and quantisation; others for
    models of another shape, and for those that were trained further.

    Over the model's sizes and the weight of its last norm, which no file format quantises, in bfloat16.
    """
    family = find_family(checkpoint)
    config = read_config(family, checkpoint)
    slot = next(each for each in family.slots(config) if each.name == _NORM)
    [source] = match_slots([slot], checkpoint, ignore=lambda _: True)
    norm = read_source(source, checkpoint).view(np.uint32).astype(np.uint64)
    rounded = ((norm + 0x7FFF + ((norm >> 16) & 1)) >> 16).astype("<u2")  # to nearest, ties to even
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads)
    text = ",".join(map(str, (*sizes, config.num_kv_heads, config.head_dim)))
    return hashlib.blake2b(text.encode() + rounded.tobytes(), digest_size=16).hexdigest()
