"""x weight^T + bias, in products of ROWS rows each."""

from __future__ import annotations

import torch

from slipstream.kernels.reference.binding import Matrix
from slipstream.kernels.reference.tile import ROWS, pad_rows


def linear(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    """x [N, in], weight [out, in], bias [out] -> [N, out]."""
    padded = pad_rows(x.contiguous())
    # weight x^T rather than x weight^T: with few rows of x the library streams the weight about twice as fast.
    tiles = [torch.mm(weight.data, padded[i : i + ROWS].t()).t() for i in range(0, len(padded), ROWS)]
    out = torch.cat(tiles)[: x.shape[0], : weight.rows] if tiles else x.new_zeros(0, weight.rows)
    return out if bias is None else out + bias
