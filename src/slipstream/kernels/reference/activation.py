"""Gated activations."""

from __future__ import annotations

import math

import torch

from slipstream.kernels.specs import ActivationKind


# torch's own silu and gelu round differently in the scalar tail of a vectorised loop, so that a number would depend on
# where it lies; exp, tanh and the arithmetic around them do not.
def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / (torch.exp(-x) + 1.0)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Hendrycks, Gimpel, arXiv 1606.08415."""
    inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
    return x * 0.5 * (torch.tanh(inner) + 1.0)


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def gated_activation(gate: torch.Tensor, up: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    return _ACTIVATIONS[kind](gate) * up
