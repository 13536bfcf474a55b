"""Sampling parameters of one request. Names and meanings follow vLLM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slipstream.errors import InvalidParamsError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Checked at construction; raises InvalidParamsError naming the field and the value.

    temperature 0 is greedy. top_k 0 or -1 is off. logprobs/prompt_logprobs: number of alternatives per
    position (0 = only the chosen token), None = off; they are raw, before any processor.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None  # None: up to the context's end
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
