"""Settings as asked for: frozen, one class per concern, contained in EngineOptions.

Names are vLLM's where the meaning is the same. None means "derive it"; `resolve` says to what, and why.
Every class checks types and ranges when constructed and raises ConfigError naming `[section] field`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from slipstream.config.speculation import SpeculationOptions, flat_speculation
from slipstream.config.suggest import did_you_mean
from slipstream.config.typed import check_range, normalise_fields
from slipstream.errors import ConfigError

Backend = Literal["auto", "reference", "cpu", "triton"]
DType = Literal["auto", "float32", "float16", "bfloat16"]
Policy = Literal["fcfs", "priority"]
Objective = Literal["auto", "off"]

MAX_BLOCK_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """`model`: a pulled name, a file, a folder. `tokenizer`: a file or folder, by default the model's own."""

    model: str
    tokenizer: str | None = None
    backend: Backend = "auto"
    dtype: DType = "auto"  # of activations and of weights that are not quantised
    max_model_len: int | None = None  # tokens, prompt and output together; None: the model's
    weight_cache: bool | None = None  # keep packed weights on disk and map them; None: where the backend packs weights

    def __post_init__(self) -> None:
        normalise_fields(self, "model")
        check_range(self, "model", "max_model_len", "at least 2", lambda x: x >= 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    block_size: int = 16  # tokens
    memory_utilization: float | None = None  # share of memory that weights, KV cache and workspace may take
    num_blocks: int | None = None  # None: what the memory holds
    enable_prefix_caching: bool = True
    kv_dtype: DType = "auto"

    def __post_init__(self) -> None:
        normalise_fields(self, "cache")
        rule = f"from 1 to {MAX_BLOCK_SIZE}"
        check_range(self, "cache", "block_size", rule, lambda x: 1 <= x <= MAX_BLOCK_SIZE)
        check_range(self, "cache", "memory_utilization", "in (0, 1]", lambda x: 0 < x <= 1)
        check_range(self, "cache", "num_blocks", "at least 1", lambda x: x >= 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    max_num_batched_tokens: int | None = None  # fed per step, all rows together
    max_num_seqs: int | None = None  # running at once
    enable_chunked_prefill: bool = True
    max_prefill_chunk: int | None = None  # tokens of one row per step; None: bounded by the step alone
    policy: Policy = "fcfs"
    max_queued: int | None = None  # requests waiting; None: no bound
    max_queued_tokens: int | None = None  # prompt tokens of the waiting requests; an empty queue takes any request
    tpot_objective: float | Objective | None = "auto"  # seconds per output token, beside prompts; None: "auto"

    def __post_init__(self) -> None:
        normalise_fields(self, "scheduler")
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_prefill_chunk", "max_queued", "max_queued_tokens"):
            check_range(self, "scheduler", name, "at least 1", lambda x: x >= 1)
        check_range(self, "scheduler", "tpot_objective", "above 0", lambda x: isinstance(x, str) or x > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model: ModelOptions
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    seed: int | None = None  # 0 .. 2**64 - 1; requests without a seed then draw theirs from it; None: from the system
    num_threads: int | None = None

    def __post_init__(self) -> None:
        for name, kind in SECTIONS.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"must be {kind.__name__}, got {getattr(self, name)!r}.", where=name)
        checked = _EngineScalars(seed=self.seed, num_threads=self.num_threads)
        object.__setattr__(self, "seed", checked.seed)
        object.__setattr__(self, "num_threads", checked.num_threads)

    @classmethod
    def from_flat(cls, **values: Any) -> EngineOptions:
        """From keyword arguments of all sections side by side: `from_flat(model="m", max_num_seqs=8)`.

        Raises ConfigError for an unknown name (with the nearest known one), a bad value, or a missing model.
        """
        return cls.from_sections(split_flat(values))

    @classmethod
    def from_sections(cls, sections: Mapping[str, Mapping[str, Any]]) -> EngineOptions:
        """From {"model": {...}, "cache": {...}, ..., "engine": {...}}; all names must be known."""
        for section, values in sections.items():
            if section not in FIELD_NAMES:
                raise ConfigError("is not a section.", where=f"[{section}]", fix=did_you_mean(section, FIELD_NAMES))
            for name in values:
                if name not in FIELD_NAMES[section]:
                    raise ConfigError("is not a setting.", where=f"[{section}] {name}", fix=_where_else(name, section))
        model = sections.get("model", {})
        if "model" not in model:
            raise ConfigError("no model is named.", where="[model] model", fix="Give a name, a file or a folder.")
        return cls(
            model=ModelOptions(**model),
            cache=CacheOptions(**sections.get("cache", {})),
            scheduler=SchedulerOptions(**sections.get("scheduler", {})),
            speculation=SpeculationOptions(**sections.get("speculation", {})),
            **sections.get("engine", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineScalars:
    seed: int | None
    num_threads: int | None

    def __post_init__(self) -> None:
        normalise_fields(self, "engine")
        check_range(self, "engine", "seed", "from 0 to 2**64 - 1", lambda x: 0 <= x < 2**64)
        check_range(self, "engine", "num_threads", "from 1 to 1024", lambda x: 1 <= x <= 1024)


SECTIONS: Mapping[str, type] = {
    "model": ModelOptions,
    "cache": CacheOptions,
    "scheduler": SchedulerOptions,
    "speculation": SpeculationOptions,
}
FIELD_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(kind)) for name, kind in {**SECTIONS, "engine": _EngineScalars}.items()
}
SECTION_OF: Mapping[str, str] = {name: section for section, names in FIELD_NAMES.items() for name in names}


def split_flat(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Sort settings into their sections; vLLM's `speculative_config` may stand for those that it holds.

    Raises ConfigError for an unknown name, with the nearest known one, and for one that is given twice.
    """
    sections: dict[str, dict[str, Any]] = {}
    if "speculative_config" in values:
        inner = flat_speculation(values["speculative_config"])
        values = {name: value for name, value in values.items() if name != "speculative_config"}
        for name in inner:
            if name in values:
                raise ConfigError("is given twice.", where=f"speculative_config and {name}", fix="Give one of the two.")
        values |= inner
    for name, value in values.items():
        if name not in SECTION_OF:
            raise ConfigError("is not a setting.", where=name, fix=did_you_mean(name, SECTION_OF))
        sections.setdefault(SECTION_OF[name], {})[name] = value
    return sections


def _where_else(name: str, section: str) -> str:
    if name in SECTION_OF:
        return f"It belongs to [{SECTION_OF[name]}]."
    return did_you_mean(name, FIELD_NAMES[section])
