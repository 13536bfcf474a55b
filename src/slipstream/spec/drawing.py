"""Drafts drawn at random, with the distribution that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp

from slipstream.spec.proposer import TokenProbs

KNOWN = 64  # likeliest tokens of the draft model, one of which is drawn


def distribution(
    top: Sequence[tuple[int, float]], *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> TokenProbs:
    """What to draw a draft from: the likeliest tokens by log-probability, likeliest first, sharpened and cut as the
    request's own distribution is. temperature > 0. Whatever it is, tokens are judged exactly by it; the more it is
    like the target's, the more drafts are accepted."""
    best = top[0][1]
    weights = [(token, exp((logprob - best) / temperature)) for token, logprob in top]
    weights = [(token, weight) for token, weight in weights if weight > 0.0 and weight >= min_p]
    if top_k > 0:
        weights = weights[:top_k]
    if top_p < 1.0:
        wanted = top_p * sum(weight for _, weight in weights)
        reached = list(accumulate(weight for _, weight in weights))
        weights = weights[: 1 + next((i for i, mass in enumerate(reached) if mass >= wanted), len(weights))]
    total = sum(weight for _, weight in weights)
    return tuple((token, weight / total) for token, weight in weights)


def draw(probs: TokenProbs, uniform: float) -> int:
    """The token at `uniform`, from 0 to 1, of the cumulative distribution."""
    mass = 0.0
    for token, share in probs:
        mass += share
        if uniform < mass:
            return token
    return probs[-1][0]
