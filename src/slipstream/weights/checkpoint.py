"""The seam between file formats and everything else: a checkpoint is named tensors plus metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the file has it. `dtype` is the GGUF type name: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K. `shape` has output rows first (the reverse of GGUF's own order)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class Checkpoint(Protocol):
    """An opened, fully validated model file or folder: every offset is inside the file, every type is known.

    Opening allocates nothing that grows with the tensors; tensor bytes are memory-mapped.
    """

    path: Path
    files: tuple[Path, ...]  # that hold tensors
    format: Literal["gguf", "safetensors"]
    metadata: Mapping[str, Any]  # GGUF key/values, or the parsed config.json

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes exactly as stored, flat, without a copy."""
        ...

    def read(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The tensor (or a row range of its first dimension) dequantised to float32."""
        ...

    def close(self) -> None: ...
