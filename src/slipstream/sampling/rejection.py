"""Verdicts on drafts that were drawn at random, by rejection sampling.

(Leviathan, Kalman, Matias, Fast inference from transformers via speculative decoding, ICML 2023; Chen et al., arXiv
2302.01318.) With p the distribution of the token and q the one that its draft was drawn from, the draft d is accepted
with probability min(1, p(d) / q(d)); else the token is drawn from max(p - q, 0), scaled to sum 1. The token is then
distributed by p, and no other way of accepting d ~ q accepts more often: with probability sum min(p, q).

A draft that was chosen rather than drawn has q(d) = 1: it is accepted with probability p(d), and else the token comes
from p without d. That is what drawing a token from p and comparing does, so for such drafts `sampler` just compares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import RequestError
from slipstream.sampling import functions
from slipstream.sampling.rng import acceptance, gumbel

TokenIds = NDArray[np.int64]
Logits = NDArray[np.float64]


def judge(
    scaled: Logits, kept: TokenIds | None, draft: int, drawn_from: Sequence[tuple[int, float]], seed: int, position: int
) -> int:
    """The token at absolute index `position`: `draft` if it is accepted, else one from what is left of p.

    scaled: logits [V] behind processors and temperature, maximum 0; kept: ids that may be drawn (ascending), None: all.
    p is their softmax. drawn_from: q as (id, probability). The verdict and the draw are functions of seed and position,
    from parts of the noise that are independent of each other. Raises RequestError if q does not have the draft.
    """
    ids = np.arange(len(scaled)) if kept is None else kept
    weights = np.zeros(len(scaled))
    weights[ids] = functions.exp(scaled[ids])
    p = weights / functions.total(weights)
    known = [(token, share) for token, share in drawn_from if token < len(scaled)]
    q = dict(known)
    if q.get(draft, 0.0) <= 0.0:
        raise RequestError(f"the draft {draft} cannot have been drawn from what is given as its distribution.")
    if acceptance(seed, position) * q[draft] < p[draft]:
        return draft
    left = p.copy()
    for token, share in known:
        left[token] = max(left[token] - share, 0.0)
    if not left.any():
        left = p  # p and q differ by rounding only
    ids = np.flatnonzero(left)
    return int(ids[(functions.log(left[ids]) + gumbel(seed, position, ids)).argmax()])
