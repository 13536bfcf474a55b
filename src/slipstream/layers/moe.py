"""A sparse mixture of gated feed-forward networks."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.kernels.specs import ActivationKind
from slipstream.kernels.table import Expert, Kernels, Tensor
from slipstream.layers.linear import Linear
from slipstream.layers.shard import Shard


class MoE:
    """x [T, hidden] -> [T, hidden]: each token takes the `top_k` experts that its router scores highest.

    `normalise` divides the chosen experts' weights by their sum. Mixtral: Jiang et al., arXiv 2401.04088.
    """

    def __init__(
        self,
        kernels: Kernels,
        router: Linear,
        experts: Sequence[Expert],
        *,
        top_k: int,
        normalise: bool,
        kind: ActivationKind,
        shard: Shard,
    ) -> None:
        shard.require_single()
        self._kernels = kernels
        self._router = router
        self._experts = tuple(experts)
        self._top_k = top_k
        self._normalise = normalise
        self._kind = kind

    def __call__(self, x: Tensor) -> Tensor:
        routing = self._kernels.moe_route(self._router(x), self._top_k, self._normalise)
        return self._kernels.moe_experts(x, routing, self._experts, self._kind)
