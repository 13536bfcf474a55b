"""Hugging Face folders of safetensors files as a `Checkpoint`, memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.formats.json_file import read_json_object
from slipstream.weights.formats.mapped import map_file
from slipstream.weights.formats.safetensors_header import parse_header
from slipstream.weights.formats.safetensors_index import INDEX_NAME, check_index, read_index
from slipstream.weights.formats.tensor_bytes import TensorBytes

SINGLE_NAME = "model.safetensors"


class SafetensorsCheckpoint:
    """An opened folder. Implements `Checkpoint`; tensors are in file order, shard after shard.

    `path` is the folder (or the single file that was named); `metadata` is the parsed config.json.
    """

    def __init__(self, path: Path, files: Sequence[Path], metadata: Mapping[str, Any], tensors: TensorBytes) -> None:
        self.path = path
        self.files = tuple(files)
        self.format: Literal["gguf", "safetensors"] = "safetensors"
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


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Open and validate a folder with config.json and model.safetensors or its shards, or one file beside config.json.

    A file that the folder's index lists as a shard opens the whole model.

    Raises:
        ModelNotFoundError: a file is absent or may not be read.
        ModelFormatError: a file is damaged, or index and shards disagree.
        UnsupportedModelError: config.json declares a quantisation method.
    """
    folder = path if path.is_dir() else path.parent
    config = _read_config(folder)
    index_path = folder / INDEX_NAME
    single = folder / SINGLE_NAME if path.is_dir() else path
    index: dict[str, str] | None = None
    if index_path.exists() and not (single.name == SINGLE_NAME and single.exists()):
        index = read_index(index_path)
        if not path.is_dir() and path.name not in index.values():
            index = None
    if index is None:
        files, root = [single], path
        infos, places = _open_files(files)[:2]
    else:
        files = [folder / name for name in sorted(set(index.values()))]
        infos, places, names = _open_files(files)
        check_index(index_path, index, names)
        root = folder
    if not infos:
        raise ModelFormatError("holds no tensors.", where=str(root), fix="Name a model that holds weights.")
    return SafetensorsCheckpoint(root, files, config, TensorBytes(infos, places))


def _open_files(
    files: Sequence[Path],
) -> tuple[list[TensorInfo], dict[str, tuple[mmap.mmap, int]], dict[str, list[str]]]:
    """All tensors, where they begin, and the tensor names of each file."""
    infos: list[TensorInfo] = []
    places: dict[str, tuple[mmap.mmap, int]] = {}
    names: dict[str, list[str]] = {}
    for file in files:
        data = map_file(file)
        header = parse_header(data, file)
        infos += [info for info, _ in header.tensors]
        places.update({info.name: (data, start) for info, start in header.tensors})
        names[file.name] = [info.name for info, _ in header.tensors]
    return infos, places, names


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise ModelFormatError(
            "has no config.json, so the model's architecture is unknown.",
            where=str(folder),
            fix="Fetch config.json (and the tokenizer's files) into the same folder.",
        )
    config = read_json_object(path)
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        quantization = part.get("quantization_config")
        if quantization is not None:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise UnsupportedModelError(
                f"the weights are quantised with {method or 'an unnamed method'}, which is not supported.",
                where=f"{path}: quantization_config",
                fix="Use the model's FP16, BF16 or FP32 weights, or a GGUF file.",
            )
    return config
