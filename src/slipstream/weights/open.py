"""From a path to an opened checkpoint, whatever its format."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import ModelFormatError, ModelNotFoundError
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.formats.gguf import open_gguf
from slipstream.weights.formats.gguf_split import split_of, split_paths
from slipstream.weights.formats.mapped import map_file, os_refusal
from slipstream.weights.formats.safetensors import SINGLE_NAME, open_safetensors
from slipstream.weights.formats.safetensors_index import INDEX_NAME
from slipstream.weights.naming import name_list

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_PICKLE_REFUSAL = "pickle files, which run code when they are loaded; they are never loaded here"
_PICKLE_FIX = "Use a safetensors or GGUF version of the model."


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file (any part of a split one), a .safetensors file, or a folder that holds one model.

    Raises:
        ModelNotFoundError: nothing is there, a link leads nowhere, or permission is denied.
        ModelFormatError: it is not one complete model in a format that is read here.
        UnsupportedModelError: the weights are quantised with a method that is not supported.
    """
    path = Path(path)
    try:
        path.stat()
        return _open_folder(path) if path.is_dir() else _open_file(path)
    except OSError as error:
        raise os_refusal(path, error) from error


def _open_file(path: Path) -> Checkpoint:
    if path.name == INDEX_NAME:
        return open_safetensors(path.parent)
    with map_file(path) as data:
        start = data[:4]
    if start == b"GGUF":
        return open_gguf(path)
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix in _PICKLE_SUFFIXES:
        raise ModelFormatError(f"is one of the {_PICKLE_REFUSAL}.", where=str(path), fix=_PICKLE_FIX)
    raise ModelFormatError(
        f"is neither a GGUF nor a safetensors file; it begins with {start!r}.",
        where=str(path),
        fix="Name a .gguf file, a .safetensors file beside its config.json, or a folder with one of them.",
    )


def _open_folder(path: Path) -> Checkpoint:
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        raise ModelNotFoundError("the folder is empty.", where=str(path), fix="Fetch a model with `slipstream pull`.")
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    safetensors = [name for name in names if name.endswith(".safetensors") or name == INDEX_NAME]
    if gguf and safetensors:
        raise _ambiguous(path, [*gguf, *safetensors])
    if gguf:
        return open_gguf(_one_gguf(path, gguf))
    if SINGLE_NAME in safetensors or INDEX_NAME in safetensors:
        return open_safetensors(path)
    if len(safetensors) == 1:
        return open_safetensors(path / safetensors[0])
    if safetensors:
        raise ModelFormatError(
            f"holds {name_list(safetensors)}, but neither {SINGLE_NAME} nor {INDEX_NAME}.",
            where=str(path),
            fix="Fetch the index file, or name the one file to use.",
        )
    pickles = [name for name in names if Path(name).suffix in _PICKLE_SUFFIXES]
    if pickles:
        raise ModelFormatError(
            f"holds weights only in {_PICKLE_REFUSAL}: {name_list(pickles)}.", where=str(path), fix=_PICKLE_FIX
        )
    raise ModelNotFoundError(
        f"the folder holds no .gguf or .safetensors file, only {name_list(names, 5)}.",
        where=str(path),
        fix="Fetch a model with `slipstream pull`.",
    )


def _one_gguf(folder: Path, names: list[str]) -> Path:
    """The only model among `names`: one file, or the parts of one split model."""
    first = folder / names[0]
    if len(names) == 1:
        return first
    parts = {part.name for part in split_paths(first)} if split_of(first) is not None else {first.name}
    if not set(names) <= parts:
        raise _ambiguous(folder, names)
    return first


def _ambiguous(folder: Path, names: list[str]) -> ModelFormatError:
    return ModelFormatError(
        f"holds more than one model: {name_list(names)}.", where=str(folder), fix="Name the file to use."
    )
