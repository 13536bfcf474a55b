"""Choosing rows: of the vocabulary, and of the batch."""

from __future__ import annotations

import torch

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.reference.binding import Matrix
from slipstream.kernels.reference.index import index


def embedding(batch: ForwardBatch, table: Matrix, scale: float) -> torch.Tensor:
    """-> [T, hidden]."""
    rows = table.data.index_select(0, index(batch.token_ids))
    return rows if scale == 1.0 else rows * scale


def inputs(batch: ForwardBatch, columns: int) -> torch.Tensor:
    """-> [T, columns]. Raises ValueError if the batch does not bring them."""
    if batch.inputs is None or batch.inputs.shape != (batch.num_tokens, columns):
        raise ValueError(f"the batch's inputs are not [{batch.num_tokens}, {columns}]")
    return torch.tensor(batch.inputs)


def select_rows(x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """x [T, n] -> [L, n]."""
    return x.index_select(0, index(batch.logits_rows))
