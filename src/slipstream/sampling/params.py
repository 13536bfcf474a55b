"""Sampling parameters of one request. Names and meanings follow vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slipstream.config.suggest import did_you_mean
from slipstream.errors import InvalidParamsError
from slipstream.sampling.checks import (
    check_bool,
    check_float,
    check_int,
    check_logit_bias,
    check_strings,
    check_token_ids,
    check_token_sequences,
    refuse,
)
from slipstream.sampling.grammar.spec import GrammarSpec

MAX_SEED = 2**64 - 1
MAX_TOP_K = 2**31 - 1  # beyond every vocabulary; kernels take it in 32 bits
MAX_N = 4096  # every completion is held from the start, so the number of them has to be bounded
MAX_LOGPROBS = 1000
MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Checked at construction; raises InvalidParamsError naming the field and the value.

    Lists become tuples, a single `stop` or `bad_words` string becomes a tuple of one, NumPy numbers become
    Python ones, and None for a list or for `logit_bias` is the empty one. Booleans are not numbers.

    temperature 0 is greedy. top_k 0 or -1 is off. logprobs/prompt_logprobs: number of alternatives per
    position (0 = only the chosen token), None = off; they are raw, before any processor.
    `bad_words` is text that the engine tokenises; the sampler reads `bad_words_ids`.
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
    seed: int | None = None  # 0 .. 2**64 - 1; None: the engine draws one
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None  # what the answer must look like; a mapping of its fields becomes one

    def __post_init__(self) -> None:
        largest = sys.float_info.max
        checked: dict[str, object] = {
            "n": check_int("n", self.n, low=1, high=MAX_N),
            "temperature": check_float(
                "temperature", self.temperature, "a finite number of at least 0", low=0.0, high=largest
            ),
            "top_k": max(0, check_int("top_k", self.top_k, low=-1, high=MAX_TOP_K)),
            "top_p": check_float("top_p", self.top_p, "in (0, 1]", low=0.0, high=1.0, open_low=True),
            "min_p": check_float("min_p", self.min_p, "in [0, 1]", low=0.0, high=1.0),
            "repetition_penalty": check_float(
                "repetition_penalty",
                self.repetition_penalty,
                "a finite number above 0",
                low=0.0,
                high=largest,
                open_low=True,
            ),
            "logit_bias": check_logit_bias("logit_bias", self.logit_bias, limit=MAX_LOGIT_BIAS),
            "bad_words": check_strings("bad_words", self.bad_words),
            "bad_words_ids": check_token_sequences("bad_words_ids", self.bad_words_ids),
            "allowed_token_ids": check_token_ids("allowed_token_ids", self.allowed_token_ids),
            "min_tokens": check_int("min_tokens", self.min_tokens, low=0),
            "stop": check_strings("stop", self.stop),
            "stop_token_ids": check_token_ids("stop_token_ids", self.stop_token_ids),
        }
        for name in ("presence_penalty", "frequency_penalty"):
            checked[name] = check_float(name, getattr(self, name), "in [-2, 2]", low=-2.0, high=2.0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            checked[name] = check_bool(name, getattr(self, name))
        if self.max_tokens is not None:
            checked["max_tokens"] = check_int("max_tokens", self.max_tokens, low=1)
        if self.seed is not None:
            checked["seed"] = check_int("seed", self.seed, low=0, high=MAX_SEED)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                checked[name] = check_int(name, getattr(self, name), low=0, high=MAX_LOGPROBS)
        if self.grammar is not None:
            checked["grammar"] = GrammarSpec.from_value(self.grammar)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            refuse("min_tokens", f"at most max_tokens ({self.max_tokens})", self.min_tokens)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """From decoded JSON or TOML: an unknown name is refused with the nearest known one.

        Keys of `logit_bias` may be decimal strings, since JSON has no others.
        """
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidParamsError(
                    "is not a sampling parameter.", where=str(name), fix=did_you_mean(str(name), known)
                )
        given = dict(values)
        bias = given.get("logit_bias")
        if isinstance(bias, Mapping):
            given["logit_bias"] = {_token_key(key): value for key, value in bias.items()}
        return cls(**given)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_history(self) -> bool:
        """True when a processor reads the earlier tokens of the sequence."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words_ids)

    def validate_for_vocab(self, vocab_size: int) -> None:
        """Raise InvalidParamsError if any token id here is not below `vocab_size`."""
        for name, ids in self._token_id_fields():
            for token_id in ids:
                if token_id >= vocab_size:
                    refuse(name, f"token ids below the vocabulary size {vocab_size}", token_id)

    def _token_id_fields(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "logit_bias", tuple(self.logit_bias)
        yield "allowed_token_ids", self.allowed_token_ids
        yield "stop_token_ids", self.stop_token_ids
        for word in self.bad_words_ids:
            yield "bad_words_ids", word


def _token_key(key: object) -> object:
    """Longer ones are no token ids, and from a length on Python refuses to read them."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 20 else key
