"""Folders of draft heads with random weights, for any model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slipstream.layers.rope import RopeConfig
from slipstream.models.draft_head_file import DraftHeadConfig
from slipstream.models.fingerprint import model_fingerprint
from slipstream.models.registry import find_family, read_config
from slipstream.weights.open import open_checkpoint


def write_head(folder: Path, target: Path, *, head_dim: int = 8, draft_vocab: int = 100) -> Path:
    """It drafts the first tokens of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = open_checkpoint(target)
    model, fingerprint = read_config(find_family(checkpoint), checkpoint), model_fingerprint(checkpoint)
    checkpoint.close()
    hidden, vocab = model.hidden_size, model.vocab_size
    rope = RopeConfig(10000.0, head_dim)
    config = DraftHeadConfig(hidden, 4, 2, head_dim, 64, 1e-5, rope, vocab, draft_vocab, "tiny", fingerprint)
    values = {
        "format": "slipstream-draft-head",
        "version": 1,
        "hidden_size": hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "features": ["final"],
        "target": {"name": "tiny", "fingerprint": fingerprint},
    }
    (folder / "config.json").write_text(json.dumps(values))
    rng = np.random.default_rng(0)
    arrays = {name: (rng.standard_normal(shape) * 0.2).astype(np.float16) for name, shape in config.shapes().items()}
    save_file({**arrays, "draft_ids": np.arange(draft_vocab, dtype=np.int32)}, folder / "model.safetensors")
    return folder
