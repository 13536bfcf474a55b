"""A first value for `fc` in closed form: the linear map that best foretells the next hidden state."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slipstream.training.examples import Batch

Floats = NDArray[np.float32]


def ridge_fc(batches: Iterable[Batch], strength: float = 1e-3) -> Floats:
    """-> [hidden, 2 hidden] that maps (feature, embedding) to the wanted feature.

    Least squares, each row divided by the size of what is wanted and multiplied by its weight, with a penalty of
    `strength` times each input's own mean square (Hoerl and Kennard, Technometrics 12(1), 1970).
    """
    gram: NDArray[np.float64] | None = None
    cross: NDArray[np.float64] | None = None
    for batch in batches:
        used = batch.weights > 0
        wanted = batch.wanted[used]
        size = np.sqrt((wanted.astype(np.float64) ** 2).mean(1)) + 1e-12
        factor = (np.sqrt(batch.weights[used]) / size).astype(np.float32)[:, None]
        x = np.concatenate([batch.features[used], batch.embeddings[used]], 1) * factor
        y = wanted * factor
        gram = x.T @ x if gram is None else gram + x.T @ x
        cross = x.T @ y if cross is None else cross + x.T @ y
    if gram is None or cross is None:
        raise ValueError("there are no batches")
    whole = gram.astype(np.float64)
    penalty = np.diag(strength * np.diag(whole) + 1e-12)
    return np.ascontiguousarray(np.linalg.solve(whole + penalty, cross.astype(np.float64)).T.astype(np.float32))
