"""Where training stands: parameters, moments, and the number of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from slipstream.errors import ModelFormatError
from slipstream.training.head_module import DraftHead
from slipstream.training.shards import Arrays, read_arrays, write_arrays

_MOMENTS = ("exp_avg", "exp_avg_sq")
_RUN = "run"


def save_checkpoint(path: Path, head: DraftHead, optimizer: torch.optim.Optimizer, step: int, run: str) -> None:
    """run: names settings and data; a checkpoint is of no use to another run."""
    arrays: Arrays = {"step": np.array([step], np.int64), _RUN: np.frombuffer(run.encode(), np.uint8)}
    for name, parameter in head.named_parameters():
        arrays[name] = parameter.detach().numpy()
        state = optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                arrays[f"{moment}.{name}"] = state[moment].numpy()
    write_arrays(path, arrays)


def load_checkpoint(path: Path, head: DraftHead, optimizer: torch.optim.Optimizer, run: str) -> int | None:
    """Puts the state back and returns the number of steps made; None if there is no checkpoint of this run."""
    if not path.exists():
        return None
    arrays = read_arrays(path)
    if arrays[_RUN].tobytes().decode() != run:
        return None
    step = int(arrays["step"][0])
    try:
        for name, parameter in head.named_parameters():
            parameter.data.copy_(torch.from_numpy(arrays[name]))
            if step:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    **{moment: torch.from_numpy(arrays[f"{moment}.{name}"]) for moment in _MOMENTS},
                }
    except KeyError as error:
        raise ModelFormatError(f"lacks {error}.", where=str(path), fix="Delete it and train anew.") from error
    return step
