"""The numbers and the files of a draft head."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.models.config import ModelConfig
from slipstream.models.draft_head_file import CONFIG_NAME, FORMAT, IDS_NAME, VERSION, WEIGHTS_NAME, DraftHeadConfig
from slipstream.training.shards import write_arrays, write_text

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """One decoder layer of the target's shape, as in EAGLE (arXiv 2401.15077). Names are those of config.json."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    hidden_act: str = "silu"
    features: tuple[str, ...] = ("final",)

    @classmethod
    def for_target(cls, target: ModelConfig, draft_vocab_size: int) -> HeadConfig:
        return cls(
            hidden_size=target.hidden_size,
            num_attention_heads=target.num_heads,
            num_key_value_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            intermediate_size=target.intermediate_size,
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope.theta,
            vocab_size=target.vocab_size,
            draft_vocab_size=draft_vocab_size,
        )

    @classmethod
    def of_file(cls, config: DraftHeadConfig) -> HeadConfig:
        return cls(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope.theta,
            vocab_size=config.vocab_size,
            draft_vocab_size=config.draft_vocab_size,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every trained tensor; the output rows are the target's own and not among them."""
        hidden, inner = self.hidden_size, self.intermediate_size
        heads, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "fc.weight": (hidden, (1 + len(self.features)) * hidden),
            "layer.input_layernorm.weight": (hidden,),
            "layer.self_attn.q_proj.weight": (heads, hidden),
            "layer.self_attn.k_proj.weight": (kv, hidden),
            "layer.self_attn.v_proj.weight": (kv, hidden),
            "layer.self_attn.o_proj.weight": (hidden, heads),
            "layer.post_attention_layernorm.weight": (hidden,),
            "layer.mlp.gate_proj.weight": (inner, hidden),
            "layer.mlp.up_proj.weight": (inner, hidden),
            "layer.mlp.down_proj.weight": (hidden, inner),
            "norm.weight": (hidden,),
        }


def write_head(
    folder: Path, config: HeadConfig, weights: Arrays, draft_ids: NDArray[np.int32], target: dict[str, str]
) -> None:
    """Weights as float16, where all of them fit its range, else float32. target: its name and fingerprint."""
    largest = max(float(np.abs(each).max()) for each in weights.values())
    dtype = np.float16 if largest < float(np.finfo(np.float16).max) else np.float32
    arrays: Arrays = {name: each.astype(dtype) for name, each in weights.items()}
    write_arrays(folder / WEIGHTS_NAME, {**arrays, IDS_NAME: draft_ids}, {"format": FORMAT})
    values = {"format": FORMAT, "version": VERSION, **asdict(config), "target": target}
    write_text(folder / CONFIG_NAME, json.dumps(values, indent=1) + "\n")
