"""A checkpoint in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.weights.checkpoint import TensorInfo


class FakeCheckpoint:
    def __init__(self, tensors: Mapping[str, NDArray[np.float32]], kind: Literal["gguf", "safetensors"]) -> None:
        self.path = Path("fake")
        self.files: tuple[Path, ...] = ()
        self.format: Literal["gguf", "safetensors"] = kind
        self.metadata: Mapping[str, Any] = {}
        self.reads: list[str] = []
        self._values = dict(tensors)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(name, v.shape, "F32", v.nbytes) for name, v in self._values.items()}

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._values[name].reshape(-1).view(np.uint8)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        self.reads.append(name)
        start, stop = rows or (0, None)
        return self._values[name][start:stop].copy()

    def close(self) -> None:
        self._values.clear()
