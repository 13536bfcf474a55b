"""Mixture of experts: routing and the experts' gated MLPs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.kernels.reference.activation import gated_activation
from slipstream.kernels.reference.binding import Matrix
from slipstream.kernels.reference.linear import linear
from slipstream.kernels.specs import ActivationKind

Routing = tuple[torch.Tensor, torch.Tensor]  # expert ids [T, k] int64, weights [T, k] float32


def moe_route(logits: torch.Tensor, top_k: int, normalise: bool) -> Routing:
    """logits [T, E]. Mixtral (arXiv 2401.04088) and Qwen3-MoE normalise; some checkpoints of the latter do not."""
    probabilities = torch.softmax(logits.contiguous(), dim=-1)
    # A stable sort, unlike topk, says which of two equal experts comes first.
    values, experts = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    values, experts = values[:, :top_k], experts[:, :top_k]
    return experts, (values / values.sum(dim=-1, keepdim=True) if normalise else values)


def moe_experts(
    x: torch.Tensor, routing: Routing, experts: Sequence[tuple[Matrix, Matrix, Matrix]], kind: ActivationKind
) -> torch.Tensor:
    """x [T, hidden] -> [T, hidden]; a token's experts are summed in the order of their weights, largest first."""
    chosen, weights = routing
    parts = x.new_zeros(*chosen.shape, x.shape[1])  # [T, k, hidden]
    for number, (gate, up, down) in enumerate(experts):
        token, rank = torch.nonzero(chosen == number, as_tuple=True)
        if len(token):
            rows = x[token]
            hidden = gated_activation(linear(rows, gate, None), linear(rows, up, None), kind)
            parts[token, rank] = linear(hidden, down, None)
    out = parts[:, 0] * weights[:, 0, None]
    for k in range(1, chosen.shape[1]):
        out = out + parts[:, k] * weights[:, k, None]
    return out
