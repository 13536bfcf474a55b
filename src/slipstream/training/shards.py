"""Arrays on disk that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from slipstream.errors import DiskSpaceError, ModelFormatError

Arrays = dict[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file beside `path` and rename it. Raises DiskSpaceError if it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        save_file(whole, partial, dict(metadata) if metadata else None)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise DiskSpaceError(
            f"cannot be written: {error}.", where=str(path), fix="Free some space and go on with --resume."
        ) from error


def read_arrays(path: Path, *names: str) -> Arrays:
    """The arrays of these names, by default all. Raises ModelFormatError for a file that is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except (SafetensorError, ValueError) as error:
        raise ModelFormatError(
            f"is damaged: {error}.", where=str(path), fix="Delete it and go on with --resume."
        ) from error


def write_text(path: Path, text: str) -> None:
    """The same for a small text file."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise DiskSpaceError(f"cannot be written: {error.strerror}.", where=str(path)) from error
