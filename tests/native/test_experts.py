"""Mixture of experts: exactly the plain ops on each expert's tokens, whoever shares the experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import kernel_sets
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from tests.native.packed import DENSE, Floats, given, random_blocks, tokens, values_of

pytestmark = pytest.mark.fast
K = cpu_kernels(2)
OTHERS = [cpu_kernels(1), cpu_kernels(3), *(cpu_kernels(2, instructions=name) for name in kernel_sets()[1:])]
REFERENCE = select_kernels("reference")
Arrays = list[tuple[Floats, Floats, Floats]]


class Layer:
    """Random experts of [wide, hidden], [wide, hidden] and [hidden, wide] in the given formats."""

    def __init__(self, count: int, hidden: int, wide: int, dtypes: tuple[str, str, str], seed: int = 0) -> None:
        self.count, self.hidden, self.dtypes = count, hidden, dtypes
        self.shapes = ((wide, hidden), (wide, hidden), (hidden, wide))
        self.data = [
            [random_blocks(d, *shape, seed=seed + 3 * e + i) for i, (d, shape) in enumerate(self._parts())]
            for e in range(count)
        ]

    def _parts(self) -> list[tuple[str, tuple[int, int]]]:
        return list(zip(self.dtypes, self.shapes, strict=True))

    def bound(self, kernels: Kernels) -> list[Any]:
        assert kernels.bind_stored is not None
        return [
            tuple(kernels.bind_stored("linear", d, s, one) for one, (d, s) in zip(data, self._parts(), strict=True))
            for data in self.data
        ]

    def values(self) -> Arrays:
        return [
            tuple(values_of(d, one, *s) for one, (d, s) in zip(data, self._parts(), strict=True))  # type: ignore[misc]
            for data in self.data
        ]


def run(
    kernels: Kernels,
    layer: Layer,
    x: Floats,
    logits: Floats,
    top_k: int,
    *,
    ids: list[int] | None = None,
    normalise: bool = True,
    kind: Any = "silu",
) -> Floats:
    routing = kernels.moe_route(given(kernels, logits, ids)[0], top_k, normalise)
    return kernels.to_numpy(kernels.moe_experts(given(kernels, x, ids)[0], routing, layer.bound(kernels), kind))


def routed(logits: Floats, top_k: int, *, normalise: bool = True) -> tuple[np.ndarray[Any, Any], Floats]:
    """Expert numbers and weights as the backend chooses them."""
    both = K.to_numpy(K.moe_route(given(K, logits)[0], top_k, normalise))
    return both[:, top_k:].astype(int), both[:, :top_k]


def plain(layer: Layer, x: Floats, logits: Floats, top_k: int, *, normalise: bool = True, kind: Any = "silu") -> Floats:
    """Every expert on all tokens with the plain ops, and the sum by rank."""
    chosen, weights = routed(logits, top_k, normalise=normalise)
    tensor, _ = given(K, x)
    parts = np.stack(
        [
            K.to_numpy(
                K.linear(K.gated_activation(K.linear(tensor, g, None), K.linear(tensor, u, None), kind), d, None)
            )
            for g, u, d in layer.bound(K)
        ]
    )
    every, row = np.stack(parts), np.arange(len(x))
    out: Floats = every[chosen[:, 0], row] * weights[:, :1]
    for rank in range(1, top_k):
        out = out + every[chosen[:, rank], row] * weights[:, rank : rank + 1]
    return out


def activations(tokens: int, layer: Layer, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, layer.hidden)).astype(np.float32)
    return x, rng.standard_normal((tokens, layer.count)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@drawn(
    rows=st.integers(1, 20),
    experts=st.sampled_from([1, 2, 5, 31, 32, 33, 128]),
    top_k=st.integers(1, 8),
    normalise=st.booleans(),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_routing_is_the_references(
    rows: int, experts: int, top_k: int, normalise: bool, scale: float, seed: int
) -> None:
    top_k = min(top_k, experts)
    logits = (
        np.random.default_rng(seed).permuted(np.tile(np.arange(experts), (rows, 1)), axis=1) * scale / 9 - 1
    ).astype(np.float32)
    chosen, weights = routed(logits, top_k, normalise=normalise)
    expected, values = REFERENCE.moe_route(torch.from_numpy(logits), top_k, normalise)
    large = values.numpy() > 1e-30  # beyond, the softmax has reached its smallest number
    np.testing.assert_array_equal(chosen[large], expected.numpy()[large])
    np.testing.assert_allclose(weights[large], values.numpy()[large], rtol=5e-6)


def test_among_equals_the_lower_number_comes_first() -> None:
    chosen, weights = routed(np.zeros((3, 40), np.float32), 4)
    assert chosen.tolist() == [[0, 1, 2, 3]] * 3
    assert weights.tolist() == [[0.25] * 4] * 3


FORMATS = [
    ("Q4_1", "Q4_1", "Q4_1"),
    ("Q5_0", "Q8_0", "Q4_0"),
    ("Q4_K", "Q4_K", "Q6_K"),
    ("F32", "F32", "F32"),
    ("BF16", "F16", "Q8_0"),
    ("Q8_0", "Q8_0", "F16"),
]


@pytest.mark.parametrize("dtypes", FORMATS, ids="-".join)
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (3, 2), (5, 5), (7, 3)])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_exactly_the_plain_ops(dtypes: tuple[str, str, str], experts: int, top_k: int, rows: int) -> None:
    layer = Layer(experts, 256, 256 if "Q4_K" in dtypes else 96, dtypes)
    x, logits = activations(rows, layer)
    for normalise, kind in ((True, "silu"), (False, "gelu_tanh")):
        got = run(K, layer, x, logits, top_k, normalise=normalise, kind=kind)
        np.testing.assert_array_equal(got, plain(layer, x, logits, top_k, normalise=normalise, kind=kind))


@settings(max_examples=25, deadline=None)
@drawn(
    rows=st.integers(1, 60),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    hidden=st.integers(1, 70),
    wide=st.integers(1, 70),
    dtype=st.sampled_from(DENSE),
    kind=st.sampled_from(["silu", "gelu_tanh"]),
    normalise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_dense_experts_are_the_references(
    rows: int, experts: int, top_k: int, hidden: int, wide: int, dtype: str, kind: Any, normalise: bool, seed: int
) -> None:
    top_k = min(top_k, experts)
    layer = Layer(experts, hidden, wide, (dtype, dtype, dtype), seed)
    x, logits = activations(rows, layer, seed)
    bound = [tuple(REFERENCE.bind("linear", array) for array in one) for one in layer.values()]
    routing = REFERENCE.moe_route(torch.from_numpy(logits), top_k, normalise)
    expected = REFERENCE.moe_experts(torch.from_numpy(x), routing, bound, kind).numpy()  # type: ignore[arg-type]
    got = run(K, layer, x, logits, top_k, normalise=normalise, kind=kind)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max()))


@settings(max_examples=15, deadline=None)
@drawn(
    rows=st.integers(1, 30),
    blocks=st.integers(1, 6),
    wide=st.integers(1, 90),
    groups=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_odd_sizes_with_dense_and_quantised_matrices(rows: int, blocks: int, wide: int, groups: int, seed: int) -> None:
    """Gate and up quantised before a dense down matrix, whose input then may have any size; and the reverse."""
    for layer in (
        Layer(3, 32 * blocks, wide, ("Q8_0", "Q5_1", "F32"), seed),
        Layer(3, 17 * blocks, 32 * groups, ("F32", "F16", "Q5_0"), seed),
    ):
        x, logits = activations(rows, layer, seed)
        np.testing.assert_array_equal(run(K, layer, x, logits, 2), plain(layer, x, logits, 2))


@pytest.mark.parametrize("dtypes", [FORMATS[0], FORMATS[2], FORMATS[3]], ids="-".join)
def test_no_bit_depends_on_the_company(dtypes: tuple[str, str, str]) -> None:
    """Alone, in batches of every size, in another order, with other threads, on other instruction sets."""
    count, layer = 61, Layer(6, 256, 256, dtypes)
    x, logits = activations(count, layer)
    whole = run(K, layer, x, logits, 3)
    order = np.random.default_rng(2).permutation(count).tolist()
    for ids in ([0], [7, 7], list(range(13)), list(range(20, 61)), order):
        np.testing.assert_array_equal(run(K, layer, x, logits, 3, ids=ids), whole[ids], err_msg=f"{len(ids)} tokens")
        for other in OTHERS:
            np.testing.assert_array_equal(run(other, layer, x, logits, 3, ids=ids), whole[ids])


@pytest.mark.parametrize("dtype", ["Q4_0", "F32"])
def test_all_tokens_on_one_expert_and_none_on_others(dtype: str) -> None:
    layer = Layer(9, 64, 64, (dtype, dtype, dtype))
    x, logits = activations(50, layer)
    logits[:, 4] = 50
    assert (routed(logits, 1)[0] == 4).all()
    np.testing.assert_array_equal(run(K, layer, x, logits, 1), plain(layer, x, logits, 1))
    logits[:, 7] = 40
    assert (routed(logits, 2)[0] == [4, 7]).all()
    whole = run(K, layer, x, logits, 2)
    np.testing.assert_array_equal(whole, plain(layer, x, logits, 2))
    np.testing.assert_array_equal(run(K, layer, x, logits, 2, ids=[49]), whole[49:])


def test_a_token_that_is_not_a_number_spoils_no_other() -> None:
    layer = Layer(5, 64, 64, ("Q8_0", "Q8_0", "Q8_0"))
    x, logits = activations(9, layer)
    good = run(K, layer, x, logits, 2)
    x[3], logits[3] = 3e38, 3e38

    def overflowed(values: Floats) -> Any:
        """Row 3 becomes infinite, the others stay as they are, bit for bit."""
        return K.scale(K.scale(given(K, values)[0], 2.0**40), 2.0**-40)

    routing = K.moe_route(overflowed(logits), 2, True)
    got = K.to_numpy(K.moe_experts(overflowed(x), routing, layer.bound(K), "silu"))
    assert np.isnan(got[3]).all()
    others = [i for i in range(9) if i != 3]
    np.testing.assert_array_equal(got[others], good[others])


def test_what_makes_no_sense_is_refused() -> None:
    layer = Layer(3, 32, 32, ("Q8_0", "Q8_0", "Q8_0"))
    x, logits = (given(K, each)[0] for each in activations(2, layer))
    routing, bound = K.moe_route(logits, 2, True), layer.bound(K)
    with pytest.raises(ValueError, match="4 experts per token out of 3"):
        K.moe_route(logits, 4, True)
    with pytest.raises(ValueError, match="2 experts, but the router scores 3"):
        K.moe_experts(x, routing, bound[:2], "silu")
    with pytest.raises(ValueError, match="comes from moe_route"):
        K.moe_experts(x, logits, bound, "silu")
    dense = Layer(3, 32, 32, DENSE[:1] * 3).bound(K)
    wide = Layer(3, 32, 64, ("Q8_0", "Q8_0", "Q8_0")).bound(K)
    for experts, message in (
        ([bound[0], bound[1], dense[2]], "gate and up matrices are quantised, and some are not"),
        ([bound[0], bound[1], (*bound[2][:2], dense[2][2])], "down matrices are quantised, and some are not"),
        ([bound[0], bound[1], wide[2]], "gate and up matrices differ in shape"),
        ([(*each[:2], wide[0][2]) for each in bound], "down matrices do not turn"),
    ):
        with pytest.raises(ConfigError, match=message):
            K.to_numpy(K.moe_experts(x, routing, experts, "silu"))
    selected = K.select_rows(logits, tokens([0, 1]))
    with pytest.raises(ConfigError, match="no native form of the op Route on selected rows"):
        K.to_numpy(K.moe_route(selected, 1, True))
