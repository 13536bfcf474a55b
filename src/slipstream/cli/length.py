"""How long an answer may get when nobody said so."""

from __future__ import annotations

from dataclasses import replace

from slipstream.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 256


def with_default_length(
    params: SamplingParams, num_prompt_tokens: int, max_model_len: int, default: int = DEFAULT_MAX_TOKENS
) -> SamplingParams:
    """`params` with max_tokens set: the default, less where the context ends before, more for min_tokens.

    Given values stay, and so does None for a prompt that leaves too little room: the engine names the numbers.
    """
    room = max_model_len - num_prompt_tokens
    if params.max_tokens is not None or room < max(1, params.min_tokens):
        return params
    return replace(params, max_tokens=min(room, max(default, params.min_tokens)))


def length_note(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> str | None:
    """What to tell a person about the length put in force by `with_default_length`; None if it is the default."""
    room = max_model_len - num_prompt_tokens
    if params.max_tokens != room or room >= DEFAULT_MAX_TOKENS:
        return None
    return f"note: the prompt's {num_prompt_tokens} tokens leave room for {room} in the context of {max_model_len}."
