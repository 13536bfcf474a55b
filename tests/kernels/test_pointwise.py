"""Norms, activations, rotation, row choice: values against plain numpy, and every token independent of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.select import select_kernels
from slipstream.kernels.specs import RopeTable
from tests.kernels.batches import token_batch

pytestmark = pytest.mark.fast
K = select_kernels("reference")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def test_embedding_and_scale() -> None:
    table = normal(5, 3)
    bound = K.bind("embedding", table.numpy())
    got = K.embedding(token_batch([4, 0, 4]), bound, 2.0)
    assert torch.equal(got, table[[4, 0, 4]] * 2.0)


def test_select_rows() -> None:
    x = normal(4, 3)
    assert torch.equal(K.select_rows(x, token_batch([0] * 4, logits_rows=[1, 3])), x[[1, 3]])
    assert K.select_rows(x, token_batch([0] * 4)).shape == (0, 3)


def test_rms_norm() -> None:
    x, weight = normal(3, 10).double().numpy(), normal(10, seed=1).numpy()
    expected = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 0.01) * weight
    got = K.rms_norm(torch.from_numpy(x).float(), K.bind("vector", weight), 0.01)
    np.testing.assert_allclose(K.to_numpy(got), expected, atol=1e-6)


def test_head_rms_norm_treats_each_head_by_itself() -> None:
    x, weight = normal(3, 12), K.bind("vector", normal(4, seed=1).numpy())
    got = K.head_rms_norm(x, weight, 4, 1e-6)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        assert torch.equal(got[:, part], K.rms_norm(x[:, part], weight, 1e-6))


def test_gated_activations() -> None:
    gate, up = normal(3, 50) * 4, normal(3, 50, seed=1)
    silu = torch.nn.functional.silu(gate.double()) * up.double()
    gelu = torch.nn.functional.gelu(gate.double(), approximate="tanh") * up.double()
    torch.testing.assert_close(K.gated_activation(gate, up, "silu").double(), silu, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(K.gated_activation(gate, up, "gelu_tanh").double(), gelu, atol=1e-5, rtol=1e-5)


def test_activations_of_extreme_values_are_finite() -> None:
    gate = torch.tensor([[-200.0, 200.0, 0.0]])
    one = torch.ones(1, 3)
    assert K.gated_activation(gate, one, "silu").tolist() == [[0.0, 200.0, 0.0]]
    assert K.gated_activation(gate, one, "gelu_tanh").tolist() == [[0.0, 200.0, 0.0]]


def test_add_scale_soft_cap() -> None:
    x, y = normal(2, 3), normal(2, 3, seed=1)
    assert torch.equal(K.add(x, y), x + y)
    assert torch.equal(K.scale(x, 0.5), x / 2)
    np.testing.assert_allclose(K.to_numpy(K.soft_cap(x * 100, 30.0)), 30 * np.tanh(x.numpy() * 100 / 30), rtol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_as_complex_numbers(interleaved: bool) -> None:
    angles = np.random.default_rng(0).uniform(-3, 3, (9, 2))
    table = RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), interleaved)
    positions = [8, 0, 3]
    x = normal(3, 2 * 6)  # two heads of six dimensions, four of which turn
    got = K.to_numpy(K.rope(x, token_batch([0] * 3, positions), K.bind_rope(table), 6)).reshape(3, 2, 6)
    heads = x.numpy().reshape(3, 2, 6)
    first, second = ([0, 2], [1, 3]) if interleaved else ([0, 1], [2, 3])
    turned = (heads[..., first] + 1j * heads[..., second]) * np.exp(1j * angles[positions])[:, None, :]
    np.testing.assert_allclose(got[..., first], turned.real, atol=1e-6)
    np.testing.assert_allclose(got[..., second], turned.imag, atol=1e-6)
    np.testing.assert_array_equal(got[..., 4:], heads[..., 4:])


def test_rope_refuses_a_position_outside_the_table() -> None:
    table = K.bind_rope(RopeTable(np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)))
    with pytest.raises(IndexError):
        K.rope(normal(1, 2), token_batch([0], [4]), table, 2)


TOKENWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rms_norm": lambda x: K.rms_norm(x, torch.linspace(0.5, 2, x.shape[1]), 1e-6),
    "silu": lambda x: K.gated_activation(x, x.flip(1), "silu"),
    "gelu_tanh": lambda x: K.gated_activation(x, x.flip(1), "gelu_tanh"),
    "soft_cap": lambda x: K.soft_cap(x, 2.0),
    "moe_route": lambda x: K.moe_route(x, 1, True)[1],
    "moe_route raw": lambda x: K.moe_route(x, 1, False)[1],
}


@pytest.mark.parametrize("name", TOKENWISE)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(2, 70), columns=st.integers(1, 90), seed=st.integers(0, 99))
def test_a_token_is_the_same_alone_and_anywhere_in_a_batch(name: str, rows: int, columns: int, seed: int) -> None:
    x = normal(rows, columns, seed=seed) * 3
    together = TOKENWISE[name](x)
    assert torch.equal(torch.cat([TOKENWISE[name](row[None]) for row in x]), together)
    assert torch.equal(TOKENWISE[name](x.flip(0)), together.flip(0))
