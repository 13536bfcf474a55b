"""Routing and experts against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.select import select_kernels

pytestmark = pytest.mark.fast
K = select_kernels("reference")


def activate(x: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_route_takes_the_largest_and_normalises() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    experts, weights = K.moe_route(logits, 2, False)
    assert experts.tolist() == [[1, 3]]
    np.testing.assert_allclose(weights.numpy(), [[0.4, 0.3]], rtol=1e-6)
    _, weights = K.moe_route(logits, 2, True)
    np.testing.assert_allclose(weights.numpy(), [[4 / 7, 3 / 7]], rtol=1e-6)


def test_among_equals_the_lower_index_comes_first() -> None:
    experts, _ = K.moe_route(torch.zeros(3, 40), 4, True)
    assert experts.tolist() == [[0, 1, 2, 3]] * 3


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 40),
    num_experts=st.integers(1, 6),
    top_k=st.integers(1, 6),
    kind=st.sampled_from(["silu", "gelu_tanh"]),
    normalise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_experts(tokens: int, num_experts: int, top_k: int, kind: str, normalise: bool, seed: int) -> None:
    top_k = min(top_k, num_experts)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, 6)).astype(np.float32)
    logits = rng.standard_normal((tokens, num_experts)).astype(np.float32)
    shapes = ((5, 6), (5, 6), (6, 5))
    arrays = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(num_experts)]
    experts = [tuple(K.bind("linear", array) for array in expert) for expert in arrays]
    routing = K.moe_route(torch.from_numpy(logits), top_k, normalise)
    got = K.moe_experts(torch.from_numpy(x), routing, experts, kind)

    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    expected = np.zeros((tokens, 6))
    for token in range(tokens):
        chosen = np.argsort(-probabilities[token])[:top_k]
        total = probabilities[token, chosen].sum() if normalise else 1.0
        for expert in chosen:
            gate, up, down = arrays[expert]
            act = (
                torch.nn.functional.silu
                if kind == "silu"
                else lambda t: torch.nn.functional.gelu(t, approximate="tanh")
            )
            hidden = act(torch.from_numpy(gate @ x[token])).numpy() * (up @ x[token])
            expected[token] += probabilities[token, expert] / total * (down @ hidden)
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-5)

    alone = [
        K.moe_experts(torch.from_numpy(x[i : i + 1]), tuple(t[i : i + 1] for t in routing), experts, kind)
        for i in range(tokens)
    ]
    assert torch.equal(torch.cat(alone), got)
