"""From token ids to hidden states, and from hidden states to logits."""

from __future__ import annotations

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.table import Kernels, Tensor, Weight


class Embedding:
    """token ids [T] -> [T, hidden], times `scale`."""

    def __init__(self, kernels: Kernels, table: Weight, scale: float = 1.0) -> None:
        self._embedding = kernels.embedding
        self._table = table
        self._scale = scale

    def __call__(self, batch: ForwardBatch) -> Tensor:
        return self._embedding(batch, self._table, self._scale)


class LMHead:
    """hidden [L, hidden] -> logits [L, vocab], soft-capped where the model says so."""

    def __init__(self, kernels: Kernels, weight: Weight, soft_cap: float | None = None) -> None:
        self._kernels = kernels
        self._weight = weight
        self._soft_cap = soft_cap

    def __call__(self, x: Tensor) -> Tensor:
        logits = self._kernels.linear(x, self._weight, None)
        return logits if self._soft_cap is None else self._kernels.soft_cap(logits, self._soft_cap)
