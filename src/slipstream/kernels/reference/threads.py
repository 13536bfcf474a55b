"""How many processor threads PyTorch uses: one number for the whole process."""

from __future__ import annotations

import torch


def set_num_threads(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
