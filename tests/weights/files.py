"""Writers of small model files, right and wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

QUANT_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

# Byte offsets of the float16 scales in each block.
SCALE_OFFSETS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random bytes of GGUF type `dtype` for a tensor of `shape`, with finite scales: [..., row bytes] uint8."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // block_size, type_size), dtype=np.uint8)
    for offset in SCALE_OFFSETS[dtype]:
        scales = rng.normal(size=(len(blocks), 1)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // block_size * type_size)


def reference_values(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype])


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    *,
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    alignment: int | None = None,
) -> Path:
    """Write with the independent gguf package. `types` names the GGUF type of tensors given as raw bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, values in tensors.items():
        raw_type = (types or {}).get(name)
        writer.add_tensor(name, values, raw_dtype=None if raw_type is None else gguf.GGMLQuantizationType[raw_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(name: str | bytes, dims: Sequence[int], type_number: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_number, offset)


def pair(key: str | bytes, type_number: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_number) + value


def raw_gguf(
    entries: Sequence[bytes],
    *,
    pairs: Sequence[bytes] = (),
    data: bytes = b"",
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """The bytes of a GGUF file, with whatever is wrong about it."""
    counts = (len(entries) if num_tensors is None else num_tensors, len(pairs) if num_pairs is None else num_pairs)
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return header + b"\0" * (-len(header) % alignment) + data


def raw_safetensors(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data
