"""Writes a safetensors model once more as GGUF, with the independent gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from slipstream.models.config import ModelConfig
from slipstream.models.family import Family
from slipstream.weights.formats.safetensors import open_safetensors


def interleave(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from halves to pairs: the order in which llama.cpp keeps Llama's q and k."""
    size = len(rows) // heads
    order = np.arange(len(rows)).reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)
    return rows[order]


def write_twin(
    folder: Path,
    path: Path,
    family: Family,
    config: ModelConfig,
    *,
    architecture: str,
    metadata: dict[str, int | float | str] | None = None,
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
    experts_as: str = "F32",
) -> Path:
    """Every slot's tensor under its GGUF name, in float32 (experts as said). `metadata` is added below the
    architecture's name.

    Covers slots that are whole tensors on both sides, and stacked experts.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_dimension_count(config.rope.rotary_dim)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    for key, value in (metadata or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    stacks: dict[str, list[np.ndarray[Any, Any]]] = {}
    source = open_safetensors(folder)
    for slot in family.slots(config):
        values = source.read(slot.hf_name or slot.name, slot.hf_rows) + np.float32(slot.hf_offset)
        if slot.gguf_rope_heads is not None:
            values = interleave(values, slot.gguf_rope_heads)
        stacks.setdefault(slot.gguf_name, []).append(values)
        if slot.gguf_expert is not None:
            assert slot.gguf_expert == len(stacks[slot.gguf_name]) - 1
        elif slot.gguf_rows is None:
            assert len(stacks[slot.gguf_name]) == 1
    experts = {slot.gguf_name for slot in family.slots(config) if slot.gguf_expert is not None}
    kind = gguf.GGMLQuantizationType[experts_as]
    for name, parts in stacks.items():
        if name in experts:
            writer.add_tensor(name, gguf.quants.quantize(np.stack(parts), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.concatenate(parts))
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    source.close()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
