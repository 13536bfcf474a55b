"""x weight^T + bias, in products of a few fixed numbers of rows."""

from __future__ import annotations

import torch

from slipstream.kernels.reference.binding import Matrix
from slipstream.kernels.reference.tile import cut_rows, pad_rows, row_tiles


def linear(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
    """x [N, in], weight [out, in], bias [out] -> [N, out]."""
    rows, columns = weight.data.shape
    tiles = cut_rows(x.shape[0], row_tiles(rows, columns, torch.get_num_threads()))
    padded = pad_rows(x.contiguous(), sum(tiles)) if tiles else x
    out = x.new_empty(padded.shape[0], rows)
    start = 0
    for size in tiles:
        torch.mm(padded[start : start + size], weight.data.t(), out=out[start : start + size])
        start += size
    out = out[: x.shape[0], : weight.rows]
    return out if bias is None else out + bias
