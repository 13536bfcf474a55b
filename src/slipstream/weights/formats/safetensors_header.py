"""The header of one safetensors file, validated: https://github.com/huggingface/safetensors#format.

Eight bytes of header length, a JSON object {name: {dtype, shape, data_offsets}}, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipstream.errors import ModelFormatError
from slipstream.lean import dataclass
from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.formats.ggml_types import GGML_TYPE_BY_NAME
from slipstream.weights.naming import name_list, show

_MAX_HEADER = 100_000_000
_MAX_DIMS = 8
_SUPPORTED = ("F32", "F16", "BF16")
_ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Tensors in file order with the file byte each begins at, and the free-form string metadata."""

    tensors: tuple[tuple[TensorInfo, int], ...]
    metadata: Mapping[str, str]


def parse_header(data: mmap.mmap | bytes, path: Path) -> SafetensorsHeader:
    """Read and check everything but the tensor bytes.

    Raises:
        ModelFormatError: the header is damaged or inconsistent, or a tensor's type is not F32, F16 or BF16.
    """
    size = len(data)
    if size < 8:
        raise _error(path, f"is truncated: a safetensors file has at least 8 bytes, this one {size}.")
    length = int.from_bytes(data[:8], "little")
    if length > _MAX_HEADER:
        raise _error(path, f"claims a header of {length} bytes; at most {_MAX_HEADER} are accepted.")
    if length > size - 8:
        raise _error(path, f"is truncated: its header needs {length} bytes, the file ends after {size}.")
    entries = _parse_json(data[8 : 8 + length], path)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _error(path, "its __metadata__ is not an object of strings.")
    _check_dtypes(entries, path)
    placed = sorted((_entry(name, entry, path) for name, entry in entries.items()), key=lambda p: (p[1], p[2]))
    _check_layout(placed, size - 8 - length, path)
    return SafetensorsHeader(
        tuple((info, 8 + length + start) for info, start, _ in placed), MappingProxyType(dict(metadata))
    )


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A `json` object_pairs_hook that refuses repeated keys with ValueError."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {show(key)} appears twice")
            seen.add(key)
    return result


def _parse_json(text: bytes, path: Path) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise _error(path, "its header is not a JSON object; this is not a safetensors file or it is damaged.")
    try:
        entries = json.loads(text.decode(), object_pairs_hook=unique_object)
    except (ValueError, RecursionError) as error:
        raise _error(path, f"its header is not valid JSON: {error}.") from error
    if not isinstance(entries, dict):
        raise _error(path, "its header is not a JSON object.")
    return entries


def _check_dtypes(entries: dict[str, Any], path: Path) -> None:
    malformed = [name for name, entry in entries.items() if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS]
    if malformed:
        raise _error(path, f"header entries without exactly dtype, shape and data_offsets: {name_list(malformed)}.")
    refused = [
        f"{show(name)} is {show(str(entry['dtype']))}"
        for name, entry in entries.items()
        if entry["dtype"] not in _SUPPORTED
    ]
    if refused:
        raise ModelFormatError(
            f"tensors of a type that is not supported ({len(refused)}): {name_list(refused)}.",
            where=str(path),
            fix=f"Supported are {', '.join(_SUPPORTED)}.",
        )


def _entry(name: str, entry: dict[str, Any], path: Path) -> tuple[TensorInfo, int, int]:
    """(info, start, end), offsets from the data section."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > _MAX_DIMS:
        raise _error(path, f"the tensor {show(name)} has the shape {show(repr(shape))}.")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _error(path, f"the tensor {show(name)} has the data_offsets {show(repr(offsets))}.")
    start, end = offsets
    needed = math.prod(shape) * GGML_TYPE_BY_NAME[entry["dtype"]].type_size
    if end - start != needed:
        raise _error(
            path, f"the tensor {show(name)} needs {needed} bytes for its shape, its offsets give {end - start}."
        )
    return TensorInfo(name, tuple(shape), entry["dtype"], needed), start, end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_layout(placed: list[tuple[TensorInfo, int, int]], data_size: int, path: Path) -> None:
    outside = [info.name for info, _, end in placed if end > data_size]
    if outside:
        raise _error(path, f"is truncated: tensors reach past its end ({len(outside)}): {name_list(outside)}.")
    end_of_last = 0
    for info, start, end in placed:
        if start != end_of_last:
            what = "overlaps the tensor before it" if start < end_of_last else "leaves a gap before it"
            raise _error(path, f"the tensor {show(info.name)} {what} (byte {start}, expected {end_of_last}).")
        end_of_last = end
    if end_of_last != data_size:
        raise _error(path, f"holds {data_size - end_of_last} bytes after its last tensor.")


def _error(path: Path, what: str) -> ModelFormatError:
    return ModelFormatError(what, where=str(path), fix="The file may be damaged; fetch it again.")
