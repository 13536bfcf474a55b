"""Plain Python statements of every processor and filter, written from their definitions, to compare with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from slipstream.sampling.params import SamplingParams

NEVER = -math.inf


def processed(
    logits: Sequence[float], params: SamplingParams, history: Sequence[int], num_prompt: int, stop_ids: Sequence[int]
) -> list[float]:
    """Logits for the token that follows `history`."""
    row = list(logits)
    if params.allowed_token_ids:
        row = [x if i in params.allowed_token_ids else NEVER for i, x in enumerate(row)]
    for word in params.bad_words_ids:
        *prefix, last = word
        if len(history) >= len(prefix) and list(history[len(history) - len(prefix) :]) == prefix:
            row[last] = NEVER
    if len(history) - num_prompt < params.min_tokens:
        for i in stop_ids:
            row[i] = NEVER
    for i, bias in params.logit_bias.items():
        row[i] += bias
    for i in set(history):
        row[i] = row[i] / params.repetition_penalty if row[i] > 0 else row[i] * params.repetition_penalty
    for i, count in Counter(history[num_prompt:]).items():
        row[i] -= params.frequency_penalty * count + params.presence_penalty
    return row


def ranking(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def softmax(values: Sequence[float]) -> list[float]:
    peak = max(values)
    weights = [math.exp(x - peak) for x in values]
    total = math.fsum(weights)
    return [w / total for w in weights]


def distribution(row: Sequence[float], params: SamplingParams, *, slack: float = 0.0) -> list[float]:
    """Probabilities after temperature, min-p, top-k and top-p, in this order; a positive slack keeps a little more."""
    peak = max(row)
    scaled = [(x - peak) / params.temperature for x in row]
    probabilities = softmax(scaled)
    kept = [i for i in ranking(scaled) if probabilities[i] >= params.min_p * max(probabilities) * (1 - slack)]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        target = params.top_p * math.fsum(probabilities[i] for i in kept) + slack
        mass, nucleus = 0.0, []
        for i in kept:
            nucleus.append(i)
            mass += probabilities[i]
            if mass >= target:
                break
        kept = nucleus
    total = math.fsum(probabilities[i] for i in kept)
    return [probabilities[i] / total if i in kept else 0.0 for i in range(len(row))]
