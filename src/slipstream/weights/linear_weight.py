"""The matrix inside a linear layer, whatever its number format."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError
from slipstream.weights.scheme import QuantScheme


class LinearWeight(Protocol):
    """A [out_features, in_features] matrix that knows its format.

    Slicing and dequantising commute: `w.shard(...).dequantize()` equals the same slice of `w.dequantize()`.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def scheme(self) -> QuantScheme: ...

    @property
    def nbytes(self) -> int:
        """Bytes in memory, scales included."""
        ...

    def dequantize(self) -> NDArray[np.float32]:
        """[out_features, in_features] float32."""
        ...

    def shard(self, rank: int, size: int, dim: int) -> Self:
        """The `rank`-th of `size` equal slices along `dim` (0: output rows, 1: input columns), with its own memory.

        Raises:
            ConfigError: the dimension does not divide by `size`.
        """
        ...


class DenseWeight:
    """Plain float32 values. Implements `LinearWeight`."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        if values.ndim != 2 or values.dtype != np.float32:
            raise ValueError(f"expected a float32 matrix, got {values.dtype} of shape {values.shape}")
        self._values = values

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._values.shape
        return rows, columns

    @property
    def scheme(self) -> QuantScheme:
        return QuantScheme(32, "float")

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def dequantize(self) -> NDArray[np.float32]:
        return self._values

    def shard(self, rank: int, size: int, dim: int) -> DenseWeight:
        start, stop = shard_range(self.shape, rank, size, dim)
        part = self._values[start:stop] if dim == 0 else self._values[:, start:stop]
        # A view would keep the whole matrix in memory.
        return DenseWeight(part.copy())


def shard_range(shape: tuple[int, int], rank: int, size: int, dim: int, multiple_of: int = 1) -> tuple[int, int]:
    """[start, stop) of the `rank`-th of `size` equal slices of `shape[dim]`, each a multiple of `multiple_of`.

    Raises:
        ValueError: `rank` or `dim` is not valid.
        ConfigError: the dimension does not divide.
    """
    if dim not in (0, 1) or not 0 <= rank < size:
        raise ValueError(f"there is no shard {rank} of {size} along dimension {dim}")
    if shape[dim] % (size * multiple_of):
        what = "output rows" if dim == 0 else "input columns"
        groups = f" of whole groups of {multiple_of}" if multiple_of > 1 else ""
        raise ConfigError(
            f"{shape[dim]} {what} do not divide into {size} equal parts{groups}.",
            fix="Choose a tensor-parallel size that divides the model's dimensions.",
        )
    step = shape[dim] // size
    return rank * step, (rank + 1) * step
