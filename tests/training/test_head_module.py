"""The module against one draft at a time with a KV cache, written as plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from tests.training.heads import CONFIG, HIDDEN, random_head

pytestmark = pytest.mark.fast

LENGTH = 9


def draft_alone(
    head: torch.nn.Module, features: torch.Tensor, embeddings: torch.Tensor, start: int, steps: int
) -> list[torch.Tensor]:
    """One sequence [T, hidden], one draft that begins at position `start`: what inference does, token by token."""
    weights = dict(head.named_parameters())
    size, group = CONFIG.head_dim, CONFIG.num_attention_heads // CONFIG.num_key_value_heads
    cache: list[tuple[torch.Tensor, torch.Tensor]] = []

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean() + CONFIG.rms_norm_eps) * weights[name]

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        out = x.clone()
        for pair in range(size // 2):
            angle = position * CONFIG.rope_theta ** (-2 * pair / size)
            cos, sin = math.cos(angle), math.sin(angle)
            a, b = x[:, pair], x[:, pair + size // 2]
            out[:, pair], out[:, pair + size // 2] = a * cos - b * sin, b * cos + a * sin
        return out

    def one(feature: torch.Tensor, position: int) -> torch.Tensor:
        x = weights["fc_weight"] @ torch.cat([feature, embeddings[position]])
        y = norm(x, "layer_input_layernorm_weight")
        q = rotate((weights["layer_self_attn_q_proj_weight"] @ y).reshape(-1, size), position)
        k = rotate((weights["layer_self_attn_k_proj_weight"] @ y).reshape(-1, size), position)
        cache.append((k, (weights["layer_self_attn_v_proj_weight"] @ y).reshape(-1, size)))
        heads = []
        for each in range(CONFIG.num_attention_heads):
            scores = torch.stack([q[each] @ key[each // group] / math.sqrt(size) for key, _ in cache])
            share = torch.softmax(scores, 0)
            heads.append(sum(share[i] * value[each // group] for i, (_, value) in enumerate(cache)))
        x = x + weights["layer_self_attn_o_proj_weight"] @ torch.cat(heads)
        y = norm(x, "layer_post_attention_layernorm_weight")
        inner = functional.silu(weights["layer_mlp_gate_proj_weight"] @ y) * (weights["layer_mlp_up_proj_weight"] @ y)
        return x + weights["layer_mlp_down_proj_weight"] @ inner

    for position in range(start):
        one(features[position], position)
    outputs = [one(features[start], start)]
    for step in range(1, steps):
        outputs.append(one(outputs[-1], start + step))
    return outputs


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features, embeddings = torch.randn(2, LENGTH, HIDDEN, generator=generator)
    return features, embeddings


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_outputs_are_those_of_a_draft_alone(steps: int) -> None:
    head = random_head()
    features, embeddings = data()
    with torch.no_grad():
        together = head(features[None], embeddings[None], steps)
        for start in range(LENGTH - steps + 1):
            for step, alone in enumerate(draft_alone(head, features, embeddings, start, steps)):
                torch.testing.assert_close(together[step][0, start + step], alone, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_drafts_alone() -> None:
    steps = 3
    features, embeddings = data()
    target = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(2))
    head = random_head()
    outputs = head(features[None], embeddings[None], steps)
    total = sum(((outputs[step][0, start + step] - target) ** 2).sum() for start in range(3) for step in range(steps))
    total.backward()
    fast = {name: parameter.grad.clone() for name, parameter in head.named_parameters() if parameter.grad is not None}
    head.zero_grad()
    slow = sum(
        ((output - target) ** 2).sum()
        for start in range(3)
        for output in draft_alone(head, features, embeddings, start, steps)
    )
    slow.backward()
    assert len(fast) == len(CONFIG.shapes()) - 1  # the norm behind is not in the outputs
    for name, parameter in head.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(fast[name], parameter.grad, rtol=1e-3, atol=1e-4)


def test_padding_behind_changes_nothing() -> None:
    head = random_head()
    features, embeddings = data()
    padded = torch.zeros(2, 1, LENGTH + 4, HIDDEN)
    padded[0, 0, :LENGTH], padded[1, 0, :LENGTH] = features, embeddings
    with torch.no_grad():
        short, long = head(features[None], embeddings[None], 3), head(*padded, 3)
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a[0, 2:], b[0, 2:LENGTH], rtol=1e-4, atol=1e-5)
