"""Logits processors: pure functions from one row of logits, float64 [V], to a new one.

`apply_processors` runs them in vLLM's order, so that settings combine as they do there:
allowed token ids, bad words, min_tokens, logit bias, then repetition, frequency and presence penalty.
A forbidden token has logit -inf.

Every function sees the sequence as it stands before the token being drawn. When drafts are verified, it is called
for each drafted position with the accepted drafts appended, as if they had been decoded one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams

Logits = NDArray[np.float64]  # [V]


def apply_processors(
    logits: NDArray[np.floating],
    params: SamplingParams,
    *,
    history: Sequence[int],
    position: int,
    num_prompt_tokens: int,
    stop_token_ids: Sequence[int],
) -> Logits:
    """Processed logits, float64 [V], for the token at absolute index `position`; the input is left alone.

    history: all `position` tokens before it, or empty if `params.needs_history` is false.
    Raises RequestError if a token id is not in the vocabulary or the history has another length.
    """
    if params.needs_history and len(history) != position:
        raise RequestError(f"the token at position {position} needs {position} earlier tokens, got {len(history)}.")
    result: Logits = logits.astype(np.float64)
    if params.allowed_token_ids:
        result = allow_only(result, params.allowed_token_ids)
    if params.bad_words_ids:
        result = ban_tokens(result, banned_by_bad_words(history, params.bad_words_ids))
    if position - num_prompt_tokens < params.min_tokens:
        result = ban_tokens(result, stop_token_ids)
    if params.logit_bias:
        result = add_bias(result, params.logit_bias)
    if params.repetition_penalty != 1.0:
        result = penalize_repetition(result, history, params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        output = history[num_prompt_tokens:]
        result = penalize_counts(result, output, params.frequency_penalty, params.presence_penalty)
    return result


def needs_processing(params: SamplingParams, *, position: int, num_prompt_tokens: int) -> bool:
    """False when `apply_processors` would change nothing at this position."""
    return (
        params.has_penalties
        or bool(params.logit_bias or params.bad_words_ids or params.allowed_token_ids)
        or position - num_prompt_tokens < params.min_tokens
    )


def is_plain(params: SamplingParams) -> bool:
    """Whether tokens are drawn from the logits as they are, at every position, and nothing else is asked for."""
    return (
        params.grammar is None
        and params.logprobs is None
        and params.prompt_logprobs is None
        and not needs_processing(params, position=0, num_prompt_tokens=0)
    )


def plain_draw(params: SamplingParams, seed: int) -> tuple[float, int, float, float, int] | None:
    """All that decides about a token besides its logits and its position; None unless `is_plain`."""
    return (params.temperature, params.top_k, params.top_p, params.min_p, seed) if is_plain(params) else None


def allow_only(logits: Logits, token_ids: Sequence[int]) -> Logits:
    """Forbid every token that is not named."""
    ids = _ids(token_ids, len(logits))
    result = np.full_like(logits, -np.inf)
    result[ids] = logits[ids]
    return result


def ban_tokens(logits: Logits, token_ids: Sequence[int]) -> Logits:
    """Forbid the named tokens."""
    result = logits.copy()
    result[_ids(token_ids, len(logits))] = -np.inf
    return result


def banned_by_bad_words(history: Sequence[int], bad_words_ids: Sequence[Sequence[int]]) -> list[int]:
    """Last tokens of those sequences whose other tokens are the end of the history, prompt included."""
    banned: list[int] = []
    for word in bad_words_ids:
        prefix = tuple(word[:-1])
        if not prefix or tuple(history[-len(prefix) :]) == prefix:
            banned.append(word[-1])
    return banned


def add_bias(logits: Logits, bias: Mapping[int, float]) -> Logits:
    """Add a number to the logits of the named tokens."""
    result = logits.copy()
    result[_ids(list(bias), len(logits))] += np.fromiter(bias.values(), dtype=np.float64, count=len(bias))
    return result


def penalize_repetition(logits: Logits, history: Sequence[int], penalty: float) -> Logits:
    """Divide positive and multiply negative logits of tokens seen in prompt or output (CTRL, arXiv 1909.05858)."""
    result = logits.copy()
    seen = np.unique(_ids(history, len(logits)))
    values = result[seen]
    with np.errstate(over="ignore"):
        scaled = np.where(values > 0, values / penalty, values * penalty)
    # An overflow stays finite: infinities cannot be told apart, and -inf means forbidden.
    largest = np.finfo(np.float64).max
    result[seen] = np.where(np.isfinite(values), np.clip(scaled, -largest, largest), values)
    return result


def penalize_counts(logits: Logits, output: Sequence[int], frequency: float, presence: float) -> Logits:
    """Subtract frequency * count + presence from tokens that occur in the output (the prompt does not count)."""
    result = logits.copy()
    seen, counts = np.unique(_ids(output, len(logits)), return_counts=True)
    result[seen] -= frequency * counts + presence
    return result


def _ids(token_ids: Sequence[int], vocab_size: int) -> NDArray[np.int64]:
    ids = np.asarray(token_ids, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        outside = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise RequestError(f"token id {outside} is not in the vocabulary of {vocab_size}.")
    return ids
