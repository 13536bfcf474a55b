"""Raw log-probabilities: log-softmax of the model's own logits, before any processor, temperature or filter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import RequestError
from slipstream.kernels.sampling import LogitsFault, SamplingOps
from slipstream.lean import dataclass
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
    require_in_vocabulary(token_id, len(logits))
    peak = float(finite_maximum(logits))
    values = logits.astype(np.float64)
    mass = functions.total(functions.exp(values - peak))
    log_total = peak + float(functions.log(np.array([mass]))[0])
    chosen = values[token_id]
    rank = 1 + int(np.count_nonzero(values > chosen)) + int(np.count_nonzero(values[:token_id] == chosen))
    top = tuple((int(i), float(values[i]) - log_total) for i in top_ranked(values, num_top))
    return TokenLogprob(token_id=token_id, logprob=float(chosen) - log_total, rank=rank, top=top)


def token_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int], num_top: int, ops: SamplingOps | None = None
) -> tuple[TokenLogprob, ...]:
    """`token_logprob` for each of L tokens: logits [L, V] of the positions before them. `ops`: a backend's form."""
    if len(logits) != len(token_ids):
        raise ValueError(f"{len(logits)} rows of logits for {len(token_ids)} tokens.")
    if ops is None:
        return tuple(token_logprob(row, token, num_top) for row, token in zip(logits, token_ids, strict=True))
    for token in token_ids:
        require_in_vocabulary(token, logits.shape[1])
    answers = ops.logprobs(logits, [(i, token, num_top) for i, token in enumerate(token_ids)])
    for _, _, _, fault in answers:
        if fault:
            raise logits_fault(fault)
    return tuple(
        TokenLogprob(token, logprob, rank, tuple(top))
        for token, (logprob, rank, top, _) in zip(token_ids, answers, strict=True)
    )


def require_in_vocabulary(token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise RequestError(f"token id {token_id} is not in the vocabulary of {vocab_size}.")


def finite_maximum(logits: NDArray[np.floating]) -> np.floating:
    """The largest of the model's logits; RequestError if one is NaN or +inf, or all are -inf."""
    peak: np.floating = logits.max()
    if np.isnan(peak):
        raise logits_fault("nan")
    if not np.isfinite(peak):
        raise logits_fault("+inf" if peak > 0 else "-inf")
    return peak


def logits_fault(fault: LogitsFault) -> RequestError:
    if fault == "nan":
        return RequestError("the model produced NaN logits.")
    return RequestError(f"the model produced infinite logits (maximum {fault}).")
