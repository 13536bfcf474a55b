"""Named tensors inside mapped files: the part of a checkpoint that both file formats share."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.dequantize import dequantize


class TensorBytes:
    """Tensors (`infos`, in file order) and where each one's bytes begin (`places`: mapping and byte offset)."""

    def __init__(self, infos: Sequence[TensorInfo], places: Mapping[str, tuple[mmap.mmap, int]]) -> None:
        self.infos: Mapping[str, TensorInfo] = MappingProxyType({info.name: info for info in infos})
        self._places = dict(places)
        self._closed = False

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes, flat and read-only, without a copy.

        Raises:
            KeyError: there is no such tensor.
            ValueError: the checkpoint is closed.
        """
        info = self.infos[name]
        if self._closed:
            raise ValueError("the checkpoint is closed")
        mapping, start = self._places[name]
        return np.frombuffer(mapping, np.uint8, info.nbytes, start)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """The values as float32; `rows` = [start, stop) of the first dimension.

        Raises:
            KeyError: there is no such tensor.
            ValueError: `rows` are not inside the tensor, or the checkpoint is closed.
        """
        info = self.infos[name]
        data = self.raw(name)
        if rows is None:
            return dequantize(data, info.dtype).reshape(info.shape)
        start, stop = rows
        if not info.shape or not 0 <= start <= stop <= info.shape[0]:
            raise ValueError(f"rows {start} to {stop} are not inside {name}, which has the shape {info.shape}")
        if len(info.shape) == 1:
            # A block of a quantised vector spans several of its "rows".
            return dequantize(data, info.dtype)[start:stop].copy()
        row_bytes = info.nbytes // info.shape[0]
        part = data[start * row_bytes : stop * row_bytes]
        return dequantize(part, info.dtype).reshape(stop - start, *info.shape[1:])

    def close(self) -> None:
        """Let go of the files. Arrays from `raw` stay valid; a mapping ends with its last array."""
        self._closed = True
        self._places.clear()
