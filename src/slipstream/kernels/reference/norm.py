"""RMS normalisation."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., n], weight [n] -> x / sqrt(mean(x^2) + eps) * weight."""
    mean = (x * x).sum(dim=-1, keepdim=True) / x.shape[-1]
    return x * torch.rsqrt(mean + eps) * weight


def head_rms_norm(x: torch.Tensor, weight: torch.Tensor, head_dim: int, eps: float) -> torch.Tensor:
    """x [N, heads * head_dim], weight [head_dim]: each head by itself."""
    return rms_norm(x.reshape(x.shape[0], -1, head_dim), weight, eps).reshape(x.shape)
