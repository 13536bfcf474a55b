"""Rotary position embedding from a table."""

from __future__ import annotations

import torch

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.reference.binding import BoundRope
from slipstream.kernels.reference.index import index


def rope(x: torch.Tensor, batch: ForwardBatch, table: BoundRope, head_dim: int) -> torch.Tensor:
    """x [T, heads * head_dim] -> the same shape, rotated. Raises IndexError for a position outside the table."""
    positions = index(batch.positions)
    cos = table.cos.index_select(0, positions)[:, None, :]  # [T, 1, pairs]
    sin = table.sin.index_select(0, positions)[:, None, :]
    pairs = table.cos.shape[1]
    heads = x.reshape(x.shape[0], -1, head_dim)
    rotated, rest = heads[..., : 2 * pairs], heads[..., 2 * pairs :]
    if table.interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = rotated[..., :pairs], rotated[..., pairs:]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return (torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned).reshape(x.shape)
