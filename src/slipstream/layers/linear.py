"""A matrix product with its weight."""

from __future__ import annotations

from slipstream.kernels.table import Kernels, Tensor, Weight
from slipstream.layers.weights import Weights


class Linear:
    """x [N, in] -> x weight^T (+ bias), [N, out]."""

    def __init__(self, kernels: Kernels, weight: Weight, bias: Weight | None = None) -> None:
        self._linear = kernels.linear
        self._weight = weight
        self._bias = bias

    @classmethod
    def load(cls, kernels: Kernels, weights: Weights) -> Linear:
        """From "weight" and, where the model has one, "bias" below the given prefix."""
        return cls(kernels, weights["weight"], weights.get("bias"))

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, self._weight, self._bias)
