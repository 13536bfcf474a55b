"""Index arrays as torch tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def index(array: NDArray[np.int32]) -> torch.Tensor:
    """A copy, int64: the batch's arrays may be read-only, which torch cannot express."""
    return torch.from_numpy(array.astype(np.int64))
