"""Fixed shapes, so that a row's numbers cannot depend on its neighbours.

A BLAS chooses its kernel, and with it the order of summation, by the shape of the product. Every product here is
therefore made of calls of one shape: ROWS rows, and output columns padded to a multiple of COLUMNS (with fewer, the
library's edge kernels sum differently for the last rows). Padding is zero and is cut off again.
"""

from __future__ import annotations

import torch
from torch.nn import functional

ROWS = 16
COLUMNS = 16


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def pad_rows(x: torch.Tensor, multiple: int = ROWS) -> torch.Tensor:
    """[N, ...] -> [N', ...] with N' the next multiple; new rows are zero."""
    missing = round_up(x.shape[0], multiple) - x.shape[0]
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x


def pad_last(x: torch.Tensor, multiple: int = COLUMNS) -> torch.Tensor:
    """[..., n] -> [..., n'] with n' the next multiple; new columns are zero."""
    missing = round_up(x.shape[-1], multiple) - x.shape[-1]
    return functional.pad(x, (0, missing)) if missing else x
