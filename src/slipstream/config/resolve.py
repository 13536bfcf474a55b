"""From the settings asked for to the ones in force. Pure: options, model and machine in, values and reasons out.

How many KV blocks fit is the engine's memory plan, made after this from what is resolved here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slipstream.config.decision import Decision
from slipstream.config.speculation import SpeculationOptions, SpeculationPolicy, Verification
from slipstream.config.types import EngineOptions, Objective
from slipstream.errors import ConfigError
from slipstream.hw.info import HardwareInfo
from slipstream.kv.spec import KV_DTYPE_BYTES

DEFAULT_MAX_NUM_BATCHED_TOKENS = 4096
DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MEMORY_UTILIZATION = 0.9
MIN_BATCHED_TOKENS = 256  # a smaller step would not keep the processor busy
MIN_NUM_SEQS = 4
WORKSPACE_SHARE = 0.25  # of the memory left beside the weights, at most, for a step's activations
TYPICAL_SEQUENCE = 512  # tokens that a sequence is assumed to hold when memory bounds how many run at once

PACKING_BACKENDS = frozenset({"cpu"})

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What resolving needs to know about a model; read from its files before any weight is loaded."""

    max_position_embeddings: int
    weight_bytes: int  # as held in memory by the backend
    num_layers: int
    num_kv_heads: int
    head_dim: int
    activation_bytes_per_token: int  # largest workspace of one token in a step, logits left out

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, got {getattr(self, field.name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveOptions:
    """Settings in force; nothing is left to derive but the number of KV blocks (None: the memory plan's)."""

    model: str
    tokenizer: str | None
    backend: str
    dtype: str
    max_model_len: int
    weight_cache: bool
    block_size: int
    memory_utilization: float
    num_blocks: int | None
    enable_prefix_caching: bool
    kv_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_chunked_prefill: bool
    max_prefill_chunk: int | None
    policy: str
    max_queued: int | None
    max_queued_tokens: int | None
    tpot_objective: float | Objective  # seconds
    speculative: str
    draft_model: str | None
    draft_head: str | None
    num_speculative_tokens: int
    speculative_policy: SpeculationPolicy
    speculative_verification: Verification
    prompt_lookup_min: int
    prompt_lookup_max: int
    speculative_store_tokens: int
    seed: int | None
    num_threads: int


@dataclass(frozen=True, slots=True)
class Resolved:
    effective: EffectiveOptions
    decisions: tuple[Decision, ...]  # one per setting, in the order of EffectiveOptions


def resolve(
    options: EngineOptions,
    model: ModelFacts,
    hardware: HardwareInfo,
    *,
    backends: Mapping[str, str | None],
    batch: bool = False,
) -> Resolved:
    """Fix every setting and say why.

    backends: those of this build, best first; None for one that runs the model, else why not.
    batch: the engine's requests are somebody's who waits for all of them; nobody reads along.

    Raises ConfigError for a setting that cannot be had: a backend that is not available, a type that it does not
    compute in, a context longer than the model's, or whole-prompt prefill in steps too small for the context.
    """
    decisions: dict[str, Decision] = {}

    def decide(name: str, asked: Value, effective: Value, why: str) -> None:
        decisions[name] = Decision(name, asked, effective, why)

    backend, why = resolve_backend(options.model.backend, backends)
    decide("backend", _asked(options.model.backend), backend, why)
    for name, asked in (("dtype", options.model.dtype), ("kv_dtype", options.cache.kv_dtype)):
        decide(name, _asked(asked), *_dtype(name, asked, backend))
    max_model_len, why = _max_model_len(options.model.max_model_len, model.max_position_embeddings)
    decide("max_model_len", options.model.max_model_len, max_model_len, why)

    decide("weight_cache", options.model.weight_cache, *_weight_cache(options.model.weight_cache, backend))

    share, why = _memory_utilization(options.cache.memory_utilization)
    decide("memory_utilization", options.cache.memory_utilization, share, why)
    budget = int(hardware.available_memory * share) - model.weight_bytes
    kv_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    kv_bytes *= KV_DTYPE_BYTES[str(decisions["kv_dtype"].effective)]
    scheduler = options.scheduler
    max_num_seqs, why = _max_num_seqs(scheduler.max_num_seqs, budget, kv_bytes * min(max_model_len, TYPICAL_SEQUENCE))
    decide("max_num_seqs", scheduler.max_num_seqs, max_num_seqs, why)
    needed = max_num_seqs if scheduler.enable_chunked_prefill else max(max_num_seqs, max_model_len)
    max_tokens, why = _max_num_batched_tokens(
        scheduler.max_num_batched_tokens, budget, model.activation_bytes_per_token, needed, max_num_seqs
    )
    decide("max_num_batched_tokens", scheduler.max_num_batched_tokens, max_tokens, why)
    if not scheduler.enable_chunked_prefill and max_tokens < max_model_len:
        raise ConfigError(
            f"is {max_tokens}, but without chunked prefill a prompt of max_model_len = {max_model_len} tokens "
            "must fit into one step.",
            where="[scheduler] max_num_batched_tokens",
            fix="Raise it, lower max_model_len, or switch enable_chunked_prefill on.",
        )
    chunk, why = _max_prefill_chunk(scheduler.max_prefill_chunk, max_tokens, scheduler.enable_chunked_prefill)
    decide("max_prefill_chunk", scheduler.max_prefill_chunk, chunk, why)
    objective = scheduler.tpot_objective if scheduler.tpot_objective != "auto" else None
    decide("tpot_objective", objective, *_tpot_objective(objective, scheduler.enable_chunked_prefill, batch))
    mode = options.speculation.speculative
    asked_mode = mode if mode in ("ngram", "draft_model", "draft_head") else None
    decide("speculative", asked_mode, *_speculative(options.speculation))
    threads, why = _num_threads(options.num_threads, hardware)
    decide("num_threads", options.num_threads, threads, why)

    values: dict[str, Any] = {}
    for field in fields(EffectiveOptions):
        if field.name not in decisions:
            value, default = _plain(options, field.name)
            decide(field.name, None if default else value, value, "default" if default else "as set")
        values[field.name] = decisions[field.name].effective
    ordered = tuple(decisions[field.name] for field in fields(EffectiveOptions))
    return Resolved(EffectiveOptions(**values), ordered)


def _plain(options: EngineOptions, name: str) -> tuple[Value, bool]:
    """A setting that is in force as it stands, and whether it is what nobody has to ask for."""
    for part in (options.model, options.cache, options.scheduler, options.speculation, options):
        for field in fields(part):
            if field.name == name:
                value: Value = getattr(part, name)
                return value, value == field.default
    raise AssertionError(f"no setting {name}")


def _asked(value: str) -> str | None:
    return None if value == "auto" else value


def resolve_backend(asked: str, backends: Mapping[str, str | None]) -> tuple[str, str]:
    """(the backend in force, why). Raises ConfigError, with the reason, for one that cannot run the model."""
    refused = {name: why for name, why in backends.items() if why is not None}
    usable = [name for name in backends if name not in refused]
    if asked == "auto" and usable:
        passed = "".join(f"; {name} cannot run this model: {why}" for name, why in refused.items())
        return usable[0], f"the best that can run this model{passed}"
    if asked in refused:
        raise ConfigError(
            f"{asked} cannot run this model: {refused[asked]}.",
            where="[model] backend",
            fix=f"Use one of: {', '.join(usable)}." if usable else None,
        )
    if asked not in usable:
        have = ", ".join(usable) or "none"
        raise ConfigError(f"{asked} is not available here (available: {have}).", where="[model] backend")
    return asked, "as set"


def _dtype(name: str, asked: str, backend: str) -> tuple[str, str]:
    """Every backend computes in float32 and keeps K and V in any type; "auto" keeps them in the backend's best."""
    if asked == "auto" and name == "kv_dtype" and backend == "cpu":
        return "float16", "what backend cpu keeps"
    if asked == "auto":
        return "float32", f"what backend {backend} computes in"
    if name == "dtype" and asked != "float32":
        raise ConfigError(
            f"backend {backend} computes in float32 only, got {asked}.",
            where="[model] dtype",
            fix='Leave it at "auto".',
        )
    return asked, "as set"


def _memory_utilization(asked: float | None) -> tuple[float, str]:
    if asked is None:
        return (
            DEFAULT_MEMORY_UTILIZATION,
            "default; the KV cache stays below half of the memory unless it is set",
        )
    return asked, "as set"


def _max_model_len(asked: int | None, limit: int) -> tuple[int, str]:
    if asked is None:
        return limit, "the model's max_position_embeddings"
    if asked > limit:
        raise ConfigError(
            f"is {asked}, but the model was made for {limit} positions.",
            where="[model] max_model_len",
            fix=f"Use at most {limit}.",
        )
    return asked, "as set"


def _weight_cache(asked: bool | None, backend: str) -> tuple[bool, str]:
    if backend not in PACKING_BACKENDS:
        return False, f"backend {backend} does not pack weights"
    return (True, "default") if asked is None else (asked, "as set")


def _max_num_seqs(asked: int | None, budget: int, bytes_per_sequence: int) -> tuple[int, str]:
    if asked is not None:
        return asked, "as set"
    fitting = budget // bytes_per_sequence
    if fitting >= DEFAULT_MAX_NUM_SEQS:
        return DEFAULT_MAX_NUM_SEQS, "default"
    why = f"the memory beside the weights holds the KV of about {max(0, fitting)} sequences of typical length"
    return max(MIN_NUM_SEQS, fitting), why


def _max_num_batched_tokens(
    asked: int | None, budget: int, bytes_per_token: int, needed: int, max_num_seqs: int
) -> tuple[int, str]:
    if asked is not None:
        if asked < max_num_seqs:
            return asked, f"as set; below max_num_seqs = {max_num_seqs}, so not every running sequence gains each step"
        return asked, "as set"
    fitting = int(budget * WORKSPACE_SHARE) // bytes_per_token
    limit = min(DEFAULT_MAX_NUM_BATCHED_TOKENS, max(MIN_BATCHED_TOKENS, fitting))
    if needed > limit:
        return needed, "the least that holds a whole prompt, or one token of every running sequence"
    if limit < DEFAULT_MAX_NUM_BATCHED_TOKENS:
        return limit, f"bounded by the memory for one step's activations ({bytes_per_token} bytes per token)"
    return limit, "default"


def _max_prefill_chunk(asked: int | None, max_num_batched_tokens: int, chunked: bool) -> tuple[int | None, str]:
    if asked is None:
        return None, "bounded by max_num_batched_tokens alone"
    if not chunked:
        raise ConfigError(
            "has no effect while enable_chunked_prefill is off.",
            where="[scheduler] max_prefill_chunk",
            fix="Set one of the two only.",
        )
    if asked > max_num_batched_tokens:
        return max_num_batched_tokens, "no more than max_num_batched_tokens fit into a step"
    return asked, "as set"


def _tpot_objective(asked: float | str | None, chunked: bool, batch: bool) -> tuple[float | str, str]:
    """Seconds, "off", or "auto": the scheduler derives them anew in every step."""
    if asked is None and not chunked:
        return "off", "enable_chunked_prefill is off, so prompts cannot be cut"
    if asked is None and batch:
        return "off", "a batch is done sooner when nobody waits for single tokens"
    if asked is None:
        return "auto", (
            "beside requests that decode, prompts are cut so that a step lasts at most 0.2 s, or twice as long as "
            "without them if that is more"
        )
    if asked != "off" and not chunked:
        raise ConfigError(
            "has no effect while enable_chunked_prefill is off.",
            where="[scheduler] tpot_objective",
            fix="Set one of the two only.",
        )
    return asked, "as set"


def _speculative(options: SpeculationOptions) -> tuple[str, str]:
    """With two proposers their names in order: the second drafts where the first finds nothing."""
    asked = options.speculative
    if asked == "auto" and options.draft_model is not None:
        return "ngram,draft_model", "n-grams where they match, the draft model elsewhere"
    if asked == "auto" and options.draft_head is not None:
        return "ngram,draft_head", "n-grams where they match, the draft head elsewhere"
    if asked == "auto":
        return "ngram", "no smaller model and no draft head is named"
    return asked, "default" if asked == "off" else "as set"


def _num_threads(asked: int | None, hardware: HardwareInfo) -> tuple[int, str]:
    recommended = hardware.recommended_threads
    if asked is None:
        return recommended, "one per usable physical core"
    if asked > hardware.usable_cpus:
        return hardware.usable_cpus, "no more processors are usable; further threads would only wait for them"
    return asked, "as set"
