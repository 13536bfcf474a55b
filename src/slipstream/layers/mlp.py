"""The gated feed-forward network."""

from __future__ import annotations

from slipstream.kernels.specs import ActivationKind
from slipstream.kernels.table import Kernels, Tensor
from slipstream.layers.linear import Linear
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights


class GatedMLP:
    """x [T, hidden] -> down(act(gate x) * up x). SwiGLU or GeGLU by `kind`. Shazeer, arXiv 2002.05202."""

    def __init__(self, kernels: Kernels, weights: Weights, kind: ActivationKind, shard: Shard) -> None:
        shard.require_single()
        self._gated_activation = kernels.gated_activation
        self._kind = kind
        self._gate = Linear.load(kernels, weights.at("gate_proj"))
        self._up = Linear.load(kernels, weights.at("up_proj"))
        self._down = Linear.load(kernels, weights.at("down_proj"))

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gated_activation(self._gate(x), self._up(x), self._kind))
