"""Fixed shapes, so that a row's numbers cannot depend on its neighbours.

A BLAS chooses its kernel, and with it the order of summation, by the shape of the product. Every product here is
therefore made of calls of one shape: ROWS rows, output columns padded to a multiple of COLUMNS (with fewer, the
library's edge kernels sum differently for the last rows). Padding is zero and is cut off again.

In `linear`, few rows are cheaper in a tile of FEW and many in tiles of MANY. They are used beside ROWS where the
library sums alike for all of them, which `row_tiles` finds out.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional

ROWS = 16
COLUMNS = 16
FEW = 4
MANY = 64

_LARGEST_TRIAL = 2**26  # elements of a weight; trying takes as much memory again


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


def cut_rows(n: int, sizes: tuple[int, ...]) -> list[int]:
    """Tiles for n rows, of the given `sizes`, ascending: large ones first, the last just large enough for the rest."""
    tiles: list[int] = []
    for size in reversed(sizes):
        if size >= ROWS:
            tiles += [size] * (n // size)
            n %= size
    return [*tiles, min(size for size in sizes if size >= n)] if n else tiles


@cache
def row_tiles(rows: int, columns: int, num_threads: int) -> tuple[int, ...]:
    """The numbers of rows of x for which the library gives x weight^T, weight [rows, columns], the same bits.

    Tried once per shape and `num_threads` (the number in force): another order of summation would show in some of the
    MANY * rows random sums.
    """
    if rows * columns > _LARGEST_TRIAL:
        return (ROWS,)
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(rows, columns, generator=generator).sub_(0.5).t()
    x = torch.rand(MANY, columns, generator=generator).sub_(0.5)
    by_rows = torch.cat([torch.mm(tile, weight) for tile in x.chunk(MANY // ROWS)])
    by_few = torch.cat([torch.mm(tile, weight) for tile in x[:ROWS].chunk(ROWS // FEW)])
    few = (FEW,) if torch.equal(by_few, by_rows[:ROWS]) else ()
    many = (MANY,) if torch.equal(torch.mm(x, weight), by_rows) else ()
    return (*few, ROWS, *many)
