"""The sparse layer: router, choice, experts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.errors import ConfigError
from slipstream.kernels.select import select_kernels
from slipstream.layers.linear import Linear
from slipstream.layers.moe import MoE
from slipstream.layers.shard import Shard

pytestmark = pytest.mark.fast
K = select_kernels("reference")


def build(shard: Shard | None = None) -> MoE:
    """Expert e computes silu(x0) * x0 * (e + 1); the router prefers expert x0 most."""
    one = np.array([[1.0, 0.0]], np.float32)
    experts = [
        (K.bind("linear", one), K.bind("linear", one), K.bind("linear", np.array([[e + 1.0], [0.0]], np.float32)))
        for e in range(3)
    ]
    router = Linear(K, K.bind("linear", np.array([[0, 0], [0, 5], [0, 4]], np.float32)))
    return MoE(K, router, experts, top_k=1, normalise=True, kind="silu", shard=shard or Shard())


def test_each_token_takes_its_own_expert() -> None:
    out = build()(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    silu = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(out.numpy(), [[2 * silu, 0], [1 * silu, 0]], rtol=1e-6)


def test_a_group_of_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a communicator"):
        build(Shard(0, 2))
