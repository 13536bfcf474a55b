from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from slipstream.config.types import (
    FIELD_NAMES,
    CacheOptions,
    EngineOptions,
    ModelOptions,
    SchedulerOptions,
    split_flat,
)
from slipstream.errors import ConfigError

pytestmark = pytest.mark.fast

BAD_VALUES: list[tuple[str, str, Any]] = [
    ("model", "model", ""),
    ("model", "model", 3),
    ("model", "tokenizer", ""),
    ("model", "backend", "cuda"),
    ("model", "dtype", "int8"),
    ("model", "dtype", None),
    ("model", "max_model_len", 1),
    ("model", "max_model_len", 10.0),
    ("model", "weight_cache", 1),
    ("cache", "block_size", 0),
    ("cache", "block_size", 1025),
    ("cache", "block_size", "16"),
    ("cache", "block_size", True),
    ("cache", "block_size", None),
    ("cache", "memory_utilization", 0.0),
    ("cache", "memory_utilization", 1.01),
    ("cache", "memory_utilization", math.nan),
    ("cache", "memory_utilization", True),
    ("cache", "num_blocks", 0),
    ("cache", "enable_prefix_caching", 1),
    ("cache", "enable_prefix_caching", "true"),
    ("cache", "kv_dtype", "fp8"),
    ("scheduler", "max_num_batched_tokens", 0),
    ("scheduler", "max_num_seqs", -1),
    ("scheduler", "enable_chunked_prefill", None),
    ("scheduler", "max_prefill_chunk", 0),
    ("scheduler", "policy", "lifo"),
    ("scheduler", "max_queued", 0),
    ("scheduler", "max_queued_tokens", 0),
    ("scheduler", "tpot_objective", 0.0),
    ("scheduler", "tpot_objective", math.inf),
    ("scheduler", "tpot_objective", "never"),
    ("speculation", "num_speculative_tokens", 0),
    ("speculation", "num_speculative_tokens", 65),
    ("speculation", "speculative", None),
    ("speculation", "draft_model", ""),
    ("speculation", "draft_head", ""),
    ("speculation", "speculative_policy", "always"),
    ("speculation", "speculative_verification", "dice"),
    ("speculation", "prompt_lookup_min", 0),
    ("speculation", "prompt_lookup_max", 0),
    ("speculation", "speculative_store_tokens", -1),
    ("speculation", "speculative_store_tokens", 2**31),
    ("engine", "seed", -1),
    ("engine", "seed", 2**64),
    ("engine", "seed", 1.5),
    ("engine", "num_threads", 0),
    ("engine", "num_threads", 1025),
]


@pytest.mark.parametrize(("section", "name", "value"), BAD_VALUES)
def test_a_bad_value_is_named_with_its_section(section: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineOptions.from_flat(**{"model": "m", name: value})
    assert str(caught.value).startswith(f"[{section}] {name}: must be ")
    assert str(caught.value).endswith(f"got {value!r}.")


@pytest.mark.parametrize("name", ["memory_utilization", "tpot_objective"])
def test_an_integer_beyond_all_floats_is_no_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be a number.*, got 1000"):
        EngineOptions.from_flat(model="m", **{name: 10**400})


def test_every_setting_has_a_refused_value() -> None:
    assert {(section, name) for section, name, _ in BAD_VALUES} == {
        (section, name) for section, names in FIELD_NAMES.items() for name in names
    }


def test_names_are_unique_over_all_sections() -> None:
    names = [name for names in FIELD_NAMES.values() for name in names]
    assert len(names) == len(set(names))
    top = {f.name for f in dataclasses.fields(EngineOptions)}
    assert top == {"model", "cache", "scheduler", "speculation", *FIELD_NAMES["engine"]}


def test_from_flat_puts_every_setting_in_its_place() -> None:
    options = EngineOptions.from_flat(
        model="m", dtype="float32", block_size=32, memory_utilization=1, max_num_seqs=8, policy="priority", seed=5
    )
    assert options == EngineOptions(
        model=ModelOptions(model="m", dtype="float32"),
        cache=CacheOptions(block_size=32, memory_utilization=1.0),
        scheduler=SchedulerOptions(max_num_seqs=8, policy="priority"),
        seed=5,
    )
    assert type(options.cache.memory_utilization) is float


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("max_num_seq", "max_num_seqs"), ("gpu_memory_utilization", "memory_utilization"), ("num_thread", "num_threads")],
)
def test_an_unknown_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: is not a setting\. Did you mean {nearest}\?$"):
        EngineOptions.from_flat(model="m", **{name: 1})


def test_the_model_is_required() -> None:
    with pytest.raises(ConfigError, match=r"\[model\] model: no model is named"):
        EngineOptions.from_flat(max_num_seqs=1)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"cach": {}}, r"\[cach\]: is not a section. Did you mean cache\?"),
        ({"cache": {"blocksize": 1}}, r"\[cache\] blocksize: is not a setting. Did you mean block_size\?"),
        ({"cache": {"max_num_seqs": 1}}, r"\[cache\] max_num_seqs: is not a setting. It belongs to \[scheduler\]\."),
    ],
)
def test_unknown_sections_and_misplaced_settings(sections: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineOptions.from_sections({"model": {"model": "m"}, **sections})


def test_a_section_of_the_wrong_type() -> None:
    with pytest.raises(ConfigError, match="cache: must be CacheOptions"):
        EngineOptions(model=ModelOptions(model="m"), cache={})  # type: ignore[arg-type]


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CacheOptions().block_size = 3  # type: ignore[misc]


def test_split_flat() -> None:
    assert split_flat({"model": "m", "seed": 1, "block_size": 2}) == {
        "model": {"model": "m"},
        "engine": {"seed": 1},
        "cache": {"block_size": 2},
    }
