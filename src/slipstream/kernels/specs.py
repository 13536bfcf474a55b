"""The constants an op is called with: plain data, no tensors of any backend."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.lean import dataclass

ActivationKind = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.

    A query at position p attends to the keys at positions max(0, p - window + 1) .. p (all up to p when
    `window` is None). Scores are (q . k) * scale, then soft_cap * tanh(score / soft_cap) where configured.
    Query head h reads KV head h // (num_heads // num_kv_heads).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None  # tokens, the query's own included
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RopeTable:
    """cos and sin of every position's rotation angles, with any attention factor already multiplied in.

    The first `rotary_dim` dimensions of a head are rotated in rotary_dim / 2 pairs, the rest pass through. Pair i is
    (i, i + rotary_dim / 2), or (2 i, 2 i + 1) when `interleaved`; (a, b) becomes (a cos - b sin, b cos + a sin).
    RoFormer: Su et al., arXiv 2104.09864.
    """

    cos: NDArray[np.float32]  # [max_position, rotary_dim / 2]
    sin: NDArray[np.float32]  # [max_position, rotary_dim / 2]
    interleaved: bool = False

    @property
    def rotary_dim(self) -> int:
        return 2 * int(self.cos.shape[1])

    @property
    def max_position(self) -> int:
        return int(self.cos.shape[0])
