"""RMS normalisation, of a token's features or of each head."""

from __future__ import annotations

from slipstream.kernels.table import Kernels, Tensor, Weight


class RMSNorm:
    """x [N, n] -> [N, n]."""

    def __init__(self, kernels: Kernels, weight: Weight, eps: float) -> None:
        self._norm = kernels.rms_norm
        self._weight = weight
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x, self._weight, self._eps)


class HeadRMSNorm:
    """x [N, heads * head_dim] -> the same shape; every head is normalised by itself with one shared weight."""

    def __init__(self, kernels: Kernels, weight: Weight, head_dim: int, eps: float) -> None:
        self._norm = kernels.head_rms_norm
        self._weight = weight
        self._head_dim = head_dim
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self._norm(x, self._weight, self._head_dim, self._eps)
