"""GGUF files as a `Checkpoint`, memory-mapped, split or whole."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFormatError
from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.formats.gguf_header import parse_header
from slipstream.weights.formats.gguf_index import Placed, place_tensors
from slipstream.weights.formats.gguf_split import check_split, split_paths
from slipstream.weights.formats.mapped import map_file
from slipstream.weights.formats.tensor_bytes import TensorBytes
from slipstream.weights.naming import duplicates, name_list


class GgufCheckpoint:
    """An opened GGUF model. Implements `Checkpoint`; tensors are in file order.

    `path` is the file, or the first part of a split model; `metadata` are its key/values.
    """

    def __init__(self, files: Sequence[Path], metadata: Mapping[str, Any], tensors: TensorBytes) -> None:
        self.path = files[0]
        self.files = tuple(files)
        self.format: Literal["gguf", "safetensors"] = "gguf"
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata))
        self._tensors = tensors

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors.infos

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._tensors.raw(name)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        return self._tensors.read(name, rows)

    def close(self) -> None:
        self._tensors.close()


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open and validate a GGUF model; any part of a split model opens all of it.

    Raises:
        ModelNotFoundError: the file is absent or may not be read.
        ModelFormatError: the file, or one of its parts, is not a complete, consistent GGUF model.
    """
    paths = split_paths(path)
    metadata: dict[str, Any] = {}
    placed: list[tuple[Placed, mmap.mmap]] = []
    for number, part in enumerate(paths, 1):
        data = map_file(part)
        header = parse_header(data, part)
        check_split(part, number, len(paths), header.metadata)
        placed += [(tensor, data) for tensor in place_tensors(header, len(data), part)]
        if number == 1:
            metadata = header.metadata
    _check_whole(paths[0], metadata, [tensor for tensor, _ in placed])
    places = {tensor.info.name: (data, tensor.start) for tensor, data in placed}
    return GgufCheckpoint(paths, metadata, TensorBytes([tensor.info for tensor, _ in placed], places))


def _check_whole(path: Path, metadata: Mapping[str, Any], placed: list[Placed]) -> None:
    if not placed:
        raise ModelFormatError(
            "holds no tensors, only metadata (a vocabulary-only file).",
            where=str(path),
            fix="Name a file that holds a model's weights.",
        )
    expected = metadata.get("split.tensors.count", len(placed))
    if expected != len(placed):
        raise ModelFormatError(
            f"split.tensors.count is {expected!r}, but the parts hold {len(placed)} tensors.", where=str(path)
        )
    repeated = duplicates([p.info.name for p in placed])
    if repeated:
        raise ModelFormatError(f"tensors appear in more than one part: {name_list(repeated)}.", where=str(path))
