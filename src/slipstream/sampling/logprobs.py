"""Raw log-probabilities: log-softmax of the model's own logits, before any processor, temperature or filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import RequestError
from slipstream.sampling import functions
from slipstream.sampling.filters import top_ranked


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token at one position, with the requested alternatives, best first."""

    token_id: int
    logprob: float
    rank: int  # 1 = most likely
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob)


def token_logprob(logits: NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprob:
    """Log-probability (natural, float64) and rank of `token_id` under logits [V], and the `num_top` best tokens.

    Equal logits rank by ascending token id. Raises RequestError for logits without a finite maximum and for an id
    outside the vocabulary.
    """
    if not 0 <= token_id < len(logits):
        raise RequestError(f"token id {token_id} is not in the vocabulary of {len(logits)}.")
    peak = float(finite_maximum(logits))
    values = logits.astype(np.float64)
    mass = functions.total(functions.exp(values - peak))
    log_total = peak + float(functions.log(np.array([mass]))[0])
    chosen = values[token_id]
    rank = 1 + int(np.count_nonzero(values > chosen)) + int(np.count_nonzero(values[:token_id] == chosen))
    top = tuple((int(i), float(values[i]) - log_total) for i in top_ranked(values, num_top))
    return TokenLogprob(token_id=token_id, logprob=float(chosen) - log_total, rank=rank, top=top)


def prompt_logprobs(logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of prompt tokens: logits [L, V] of the positions before each of the L `token_ids`."""
    if len(logits) != len(token_ids):
        raise ValueError(f"{len(logits)} rows of logits for {len(token_ids)} prompt tokens.")
    return tuple(token_logprob(row, token, num_top) for row, token in zip(logits, token_ids, strict=True))


def finite_maximum(logits: NDArray[np.floating]) -> np.floating:
    """The largest of the model's logits; RequestError if one is NaN or +inf, or all are -inf."""
    peak: np.floating = logits.max()
    if np.isnan(peak):
        raise RequestError("the model produced NaN logits.")
    if not np.isfinite(peak):
        raise RequestError(f"the model produced infinite logits (maximum {peak:+}).")
    return peak
