"""Fields that completions and chat completions share, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from slipstream.engine.protocol import RequestSpeculation
from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import BadRequestError
from slipstream.server.options import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS_TOKENS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    ServerOptions,
)
from slipstream.server.schema.base import Items, RequestModel, given_fields
from slipstream.server.structured import grammar_of

IGNORED = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Fields of OpenAI's API that change nothing here; accepted, and named in the header X-Slipstream-Ignored."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(RequestModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # as vLLM: usage so far in every chunk
    include_obfuscation: bool | None = None  # accepted; chunks are never padded


class SpeculativeField(RequestModel):
    """Drafts for this request: they change its speed, never its tokens."""

    mode: Literal["off", "auto", "ngram", "draft_model", "draft_head"] = "auto"
    num_tokens: Annotated[int, Field(ge=0, le=64)] | None = None  # of the longest draft

    def wish(self) -> RequestSpeculation:
        return RequestSpeculation(self.mode, self.num_tokens)


class CommonFields(RequestModel):
    """Fields that mean the same on all routes that generate, /v1/messages included."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    timeout: float | None = None  # seconds from arrival to the end
    priority: int | None = None  # lower is more important
    cache_salt: str | None = None  # separates prefix caches
    speculative: SpeculativeField | None = None
    timings: bool | None = None  # add a block of timings to the answer


class SamplingFields(CommonFields):
    """More of them, of OpenAI's routes."""

    model: str | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | Items[str] | None = None


class SharedFields(SamplingFields):
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: Items[str] | None = None
    allowed_token_ids: Items[TokenId] | None = None
    max_tokens: int | None = None
    stop_token_ids: Items[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None  # these, as in vLLM: json, regex, choice, grammar or json_object
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def ignored(self) -> list[str]:
        return given_fields(self, IGNORED)


def as_shared(body: CommonFields, **others: Any) -> SharedFields:
    """The fields that mean the same for all routes; `others`: those that have another name in the body."""
    base = SamplingFields if isinstance(body, SamplingFields) else CommonFields
    return SharedFields(**{name: getattr(body, name) for name in base.model_fields}, **others)


_DIRECT = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
)


def sampling_params(
    body: SharedFields,
    options: ServerOptions,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Raises InvalidParamsError or BadRequestError that names the field."""
    for name, value in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
        if value is not None and value > options.max_logprobs:
            raise InvalidParamsError(f"must be at most {options.max_logprobs}, got {value}.", where=name)
    n = 1 if body.n is None else body.n
    if n > options.max_n:
        raise InvalidParamsError(f"must be at most {options.max_n}, got {n}.", where="n")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("only goes with stream: true.", param="stream_options")
    _check_sizes(body)
    given = {name: getattr(body, name) for name in _DIRECT if getattr(body, name) is not None}
    return SamplingParams.from_mapping(
        {
            **given,
            "n": n,
            "stop": _stop(body.stop),
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "grammar": grammar_of(body),
        }
    )


def _check_sizes(body: SharedFields) -> None:
    """These are gone through for every request or every token, so that one request must not bring a million."""
    for name, most in (
        ("bad_words", MAX_BAD_WORDS),
        ("logit_bias", MAX_LOGIT_BIAS_TOKENS),
        ("stop_token_ids", MAX_STOP_TOKEN_IDS),
        ("allowed_token_ids", MAX_ALLOWED_TOKEN_IDS),
    ):
        count = len(getattr(body, name) or ())
        if count > most:
            raise BadRequestError(f"at most {most} entries, got {count}.", param=name)
    if any(len(word) > MAX_BAD_WORD_CHARACTERS for word in body.bad_words or ()):
        raise BadRequestError(f"a string has more than {MAX_BAD_WORD_CHARACTERS} characters.", param="bad_words")


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise BadRequestError(f"at most {MAX_STOP_STRINGS} strings, got {len(strings)}.", param="stop")
    if any(len(string) > MAX_STOP_CHARACTERS for string in strings):
        raise BadRequestError(f"a string has more than {MAX_STOP_CHARACTERS} characters.", param="stop")
    return strings
