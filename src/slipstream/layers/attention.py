"""Multi-head attention with grouped KV heads over the paged cache."""

from __future__ import annotations

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.specs import AttentionSpec
from slipstream.kernels.table import Kernels, Tensor, Weight
from slipstream.kv.storage import KVStorage
from slipstream.layers.linear import Linear
from slipstream.layers.norm import HeadRMSNorm
from slipstream.layers.shard import Shard
from slipstream.layers.weights import Weights


class Attention:
    """x [T, hidden] -> [T, hidden]: project, normalise the heads (with `qk_norm_eps`), rotate, attend, project back.

    `weights` holds q_proj, k_proj, v_proj, o_proj (each with a bias where the model has one), and with `qk_norm_eps`
    q_norm and k_norm. GQA: Ainslie et al., arXiv 2305.13245.
    """

    def __init__(
        self,
        kernels: Kernels,
        weights: Weights,
        spec: AttentionSpec,
        *,
        layer_index: int,
        rope: Weight,
        qk_norm_eps: float | None = None,
        shard: Shard,
    ) -> None:
        shard.require_single()
        self._kernels = kernels
        self._spec = spec
        self._layer_index = layer_index
        self._rope = rope
        self._q = Linear.load(kernels, weights.at("q_proj"))
        self._k = Linear.load(kernels, weights.at("k_proj"))
        self._v = Linear.load(kernels, weights.at("v_proj"))
        self._o = Linear.load(kernels, weights.at("o_proj"))
        self._q_norm: HeadRMSNorm | None = None
        self._k_norm: HeadRMSNorm | None = None
        if qk_norm_eps is not None:
            self._q_norm = HeadRMSNorm(kernels, weights["q_norm.weight"], spec.head_dim, qk_norm_eps)
            self._k_norm = HeadRMSNorm(kernels, weights["k_norm.weight"], spec.head_dim, qk_norm_eps)

    def __call__(self, x: Tensor, batch: ForwardBatch, kv: KVStorage) -> Tensor:
        q, k, v = self._q(x), self._k(x), self._v(x)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm(q), self._k_norm(k)
        q = self._kernels.rope(q, batch, self._rope, self._spec.head_dim)
        k = self._kernels.rope(k, batch, self._rope, self._spec.head_dim)
        return self._o(self._kernels.attention(q, k, v, batch, kv, self._layer_index, self._spec))
