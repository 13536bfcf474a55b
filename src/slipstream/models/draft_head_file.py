"""A draft head's folder, read and checked: config.json and model.safetensors.

The target's own embedding and output rows are not stored; docs/speculation.md describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from slipstream.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from slipstream.layers.rope import RopeConfig, is_usable
from slipstream.lean import dataclass
from slipstream.models.reader import Reader
from slipstream.weights.formats.json_file import read_json_object
from slipstream.weights.naming import name_list, show

FORMAT, VERSION = "slipstream-draft-head", 1
CONFIG_NAME, WEIGHTS_NAME, IDS_NAME = "config.json", "model.safetensors", "draft_ids"
LARGEST = 1e6  # of a weight; the int8 form that backends round to ends at about 8e6

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """One decoder layer over the target's hidden states, with a reduced vocabulary. EAGLE: Li et al., arXiv 2401.15077.

    `target`, `fingerprint`: the model that it was trained for, by name and by `model_fingerprint`.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    vocab_size: int  # of the target
    draft_vocab_size: int
    target: str
    fingerprint: str

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor but the ids."""
        hidden, wide = self.hidden_size, self.intermediate_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "fc.weight": (hidden, 2 * hidden),
            "layer.input_layernorm.weight": (hidden,),
            "layer.self_attn.q_proj.weight": (q, hidden),
            "layer.self_attn.k_proj.weight": (kv, hidden),
            "layer.self_attn.v_proj.weight": (kv, hidden),
            "layer.self_attn.o_proj.weight": (hidden, q),
            "layer.post_attention_layernorm.weight": (hidden,),
            "layer.mlp.gate_proj.weight": (wide, hidden),
            "layer.mlp.up_proj.weight": (wide, hidden),
            "layer.mlp.down_proj.weight": (hidden, wide),
            "norm.weight": (hidden,),
        }


@dataclass(frozen=True, slots=True, eq=False)
class DraftHeadFile:
    """`weights`: float32, by name. `draft_ids`: the target's token of each row of the reduced head, [draft_vocab]."""

    folder: Path
    config: DraftHeadConfig
    weights: Mapping[str, Floats]
    draft_ids: NDArray[np.int32]

    @property
    def files(self) -> tuple[Path, ...]:
        return self.folder / CONFIG_NAME, self.folder / WEIGHTS_NAME


def is_draft_head(folder: Path) -> bool:
    """Whether the folder's config.json says so."""
    path = folder / CONFIG_NAME
    return path.is_file() and read_json_object(path).get("format") == FORMAT


def read_draft_head(folder: Path) -> DraftHeadFile:
    """Raises ModelNotFoundError, ModelFormatError and UnsupportedModelError, each with the file and what is wrong."""
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if not (folder / name).is_file():
            raise ModelNotFoundError(
                f"is no draft head: it has no {name}.",
                where=str(folder),
                fix="Name the folder that `slipstream draft train` wrote.",
            )
    config = _config(folder / CONFIG_NAME)
    path = folder / WEIGHTS_NAME
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelFormatError(f"cannot be read: {error}.", where=str(path)) from error
    ids = _ids(arrays.pop(IDS_NAME, None), config, path)
    return DraftHeadFile(folder, config, _weights(arrays, config, path), ids)


def _config(path: Path) -> DraftHeadConfig:
    values = Reader(read_json_object(path), str(path))
    if values.text("format", "") != FORMAT:
        raise ModelFormatError(f"its format is not {FORMAT!r}.", where=str(path))
    values.require("version", VERSION)
    values.require("hidden_act", "silu")
    if values.texts("features") != ("final",):
        raise values.unsupported("features")
    target = values.section("target")
    head_dim = values.integer("head_dim", limit=4096)
    config = DraftHeadConfig(
        hidden_size=values.integer("hidden_size"),
        num_heads=values.integer("num_attention_heads"),
        num_kv_heads=values.integer("num_key_value_heads"),
        head_dim=head_dim,
        intermediate_size=values.integer("intermediate_size"),
        rms_norm_eps=values.number("rms_norm_eps"),
        rope=RopeConfig(values.number("rope_theta"), head_dim),
        vocab_size=values.integer("vocab_size"),
        draft_vocab_size=values.integer("draft_vocab_size"),
        target=target.text("name"),
        fingerprint=target.text("fingerprint"),
    )
    if config.num_heads % config.num_kv_heads or head_dim % 2 or config.rms_norm_eps < 0:
        raise ModelFormatError("its heads, their size or its epsilon do not make an attention layer.", where=str(path))
    if config.draft_vocab_size > config.vocab_size:
        raise ModelFormatError("draft_vocab_size is larger than vocab_size.", where=str(path))
    if not is_usable(config.rope, 1 << 20):
        raise ModelFormatError(f"a rotation of base {config.rope.theta} cannot be computed.", where=str(path))
    return config


def _ids(array: NDArray[Any] | None, config: DraftHeadConfig, path: Path) -> NDArray[np.int32]:
    if array is None or array.dtype != np.int32 or array.shape != (config.draft_vocab_size,):
        raise ModelFormatError(f"{IDS_NAME} is not [{config.draft_vocab_size}] int32.", where=str(path))
    if array.min() < 0 or array.max() >= config.vocab_size or len(np.unique(array)) != len(array):
        raise ModelFormatError(
            f"{IDS_NAME} holds a token twice, or one outside 0 .. {config.vocab_size - 1}.", where=str(path)
        )
    return array


def _weights(arrays: Mapping[str, NDArray[Any]], config: DraftHeadConfig, path: Path) -> dict[str, Floats]:
    shapes = config.shapes()
    missing, unknown = sorted(shapes.keys() - arrays.keys()), sorted(arrays.keys() - shapes.keys())
    if missing or unknown:
        what = f"lacks {name_list(missing)}" if missing else f"has {name_list(unknown)} as well"
        raise ModelFormatError(f"{what}.", where=str(path))
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or array.dtype not in (np.float16, np.float32):
            raise ModelFormatError(
                f"{show(name)} is {list(array.shape)} {array.dtype}, not {list(shape)} float16 or float32.",
                where=str(path),
            )
        if not (np.abs(array.astype(np.float32)) <= LARGEST).all():
            raise ModelFormatError(f"{show(name)} holds values that are not finite, or huge.", where=str(path))
    return {name: arrays[name].astype(np.float32) for name in shapes}


def require_fit(head: DraftHeadFile, hidden_size: int, vocab_size: int, fingerprint: str) -> None:
    """Raises UnsupportedModelError if the head was trained for another model than the one of these facts."""
    config = head.config
    facts = (
        ("hidden size", config.hidden_size, hidden_size),
        ("vocabulary", config.vocab_size, vocab_size),
        ("fingerprint", config.fingerprint, fingerprint),
    )
    for name, own, wanted in facts:
        if own != wanted:
            raise UnsupportedModelError(
                f"this draft head was trained for {config.target or 'another model'}: its {name} is {own}, "
                f"the model's {wanted}.",
                where=str(head.folder),
                fix="Train one for this model: slipstream draft train MODEL --out FOLDER.",
            )
