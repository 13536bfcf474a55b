"""Temperature and truncation: which tokens may be drawn, and with what relative weight.

Tokens are ranked by (logit descending, token id ascending); each filter keeps a prefix of that ranking, so ties are
decided by the id and the result is one exact set. Order, as in vLLM: temperature, min-p, top-k, top-p.
Probabilities are those after temperature. All arithmetic is float64, exponentials and sums as in `functions`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling import functions

Logits = NDArray[np.float64]  # [V]
TokenIds = NDArray[np.int64]

_FIRST_CANDIDATES = 256
_CANDIDATES_GROWTH = 8


def scale_by_temperature(logits: NDArray[np.floating], temperature: float) -> Logits:
    """(logits - max) / temperature, float64 [V], for temperature > 0 and a finite maximum.

    Shifting first keeps the largest at exactly 0 when the division overflows for tiny temperatures.
    """
    with np.errstate(over="ignore"):
        scaled: Logits = (logits.astype(np.float64) - np.float64(logits.max())) / temperature
    return scaled


def kept_tokens(scaled: Logits, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> TokenIds | None:
    """Ids that survive all filters, in no particular order; None when none of them is on.

    scaled: result of `scale_by_temperature` (maximum 0). Never empty, and never holds a token of logit -inf.
    """
    if top_k <= 0 and top_p >= 1.0 and min_p <= 0.0:
        return None
    ids: TokenIds | None = None
    if min_p > 0.0:
        ids = np.flatnonzero(min_p_mask(scaled, min_p))
    if top_k > 0:
        ids = top_ranked(scaled, top_k) if ids is None else ids[top_ranked(scaled[ids], top_k)]
    if top_p < 1.0:
        ids = top_p_ranked(scaled, top_p) if ids is None else ids[top_p_ranked(scaled[ids], top_p)]
    assert ids is not None
    return ids[scaled[ids] > -np.inf]


def min_p_mask(scaled: Logits, min_p: float) -> NDArray[np.bool_]:
    """Tokens whose probability is at least min_p times the largest (arXiv 2407.01082). `scaled` has maximum 0."""
    mask: NDArray[np.bool_] = functions.exp(scaled) >= min_p
    return mask


def top_ranked(values: Logits, count: int) -> TokenIds:
    """Indices of the `count` highest-ranked values (all, if there are fewer), best first."""
    size = len(values)
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if count >= size:
        return _rank(values, np.arange(size))
    threshold = np.partition(values, size - count)[size - count]
    return _rank(values, np.flatnonzero(values >= threshold))[:count]


def top_p_ranked(values: Logits, top_p: float) -> TokenIds:
    """Nucleus (arXiv 1904.09751): indices of the shortest prefix of the ranking whose mass reaches top_p, best first.

    Exactly: with weights w = exp(values - max), the running sum of w in rank order first reaches top_p * sum(w),
    the latter being `functions.total` in index order; all, if rounding keeps it from doing so. Only as many of
    the best are ranked as the mass needs; the outcome is that of ranking all.
    """
    size = len(values)
    weights = functions.exp(values - values.max())
    target = top_p * functions.total(weights)
    count = min(_FIRST_CANDIDATES, size)
    while True:
        ranked = top_ranked(values, count)
        mass = np.cumsum(weights[ranked])
        if mass[-1] >= target or count == size:
            return ranked[: int(np.searchsorted(mass, target, side="left")) + 1]
        count = min(count * _CANDIDATES_GROWTH, size)


def _rank(values: Logits, ids: TokenIds) -> TokenIds:
    """`ids` (ascending) by (value descending, id ascending)."""
    return ids[np.argsort(-values[ids], kind="stable")]
