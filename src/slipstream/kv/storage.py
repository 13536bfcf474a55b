"""The KV cache itself: the only file of this room that holds arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.kv.spec import KVSpec
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class KVStorage:
    """K and V of every layer, in `num_blocks` blocks of spec.block_size tokens.

    `layers` comes from the backend's `new_kv` and only the backend looks inside. Slot s is the token at
    offset s % block_size of block s // block_size, in every layer alike.
    """

    spec: KVSpec
    num_blocks: int
    layers: Sequence[Any]  # [num_layers]

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {self.num_blocks}")
        if len(self.layers) != self.spec.num_layers:
            raise ValueError(f"{len(self.layers)} layers of KV arrays, but the spec has {self.spec.num_layers}")

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.spec.bytes_per_block
