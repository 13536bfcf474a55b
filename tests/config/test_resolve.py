from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slipstream.config.decision import Decision
from slipstream.config.resolve import EffectiveOptions, ModelFacts, Resolved, resolve
from slipstream.config.types import FIELD_NAMES, EngineOptions
from slipstream.errors import ConfigError
from slipstream.hw.info import HardwareInfo

pytestmark = pytest.mark.fast

MIB = 2**20
MODEL = ModelFacts(
    max_position_embeddings=2048,
    weight_bytes=500 * MIB,
    num_layers=32,
    num_kv_heads=4,
    head_dim=64,
    activation_bytes_per_token=64 * 1024,
)
KV_PER_TOKEN = 2 * 32 * 4 * 64 * 4


def hardware(available: int = 64 * 1024 * MIB) -> HardwareInfo:
    return HardwareInfo(
        cpu_model="x",
        architecture="x86_64",
        physical_cores=8,
        usable_cores=4,
        usable_cpus=6,
        cpu_quota=None,
        cpu_features=(),
        total_memory=available,
        available_memory=available,
        numa_nodes=1,
    )


def run(*, available: int = 64 * 1024 * MIB, backends: tuple[str, ...] = ("reference",), **settings: Any) -> Resolved:
    options = EngineOptions.from_flat(model="m", **settings)
    return resolve(options, MODEL, hardware(available), backends=dict.fromkeys(backends))


def decision(resolved: Resolved, name: str) -> Decision:
    (found,) = [d for d in resolved.decisions if d.field == name]
    return found


def test_defaults_with_plenty_of_memory() -> None:
    resolved = run()
    assert resolved.effective == EffectiveOptions(
        model="m",
        tokenizer=None,
        backend="reference",
        dtype="float32",
        max_model_len=2048,
        weight_cache=False,
        block_size=16,
        memory_utilization=0.9,
        num_blocks=None,
        enable_prefix_caching=True,
        kv_dtype="float32",
        max_num_batched_tokens=4096,
        max_num_seqs=64,
        enable_chunked_prefill=True,
        max_prefill_chunk=None,
        policy="fcfs",
        max_queued=None,
        max_queued_tokens=None,
        tpot_objective="auto",
        speculative="off",
        draft_model=None,
        draft_head=None,
        num_speculative_tokens=5,
        speculative_policy="cost",
        speculative_verification="gumbel",
        prompt_lookup_min=2,
        prompt_lookup_max=32,
        speculative_store_tokens=0,
        seed=None,
        num_threads=4,
    )


def test_every_setting_has_one_decision_that_agrees_with_the_effect() -> None:
    resolved = run(max_num_seqs=3, num_threads=2, policy="priority")
    names = [f.name for f in dataclasses.fields(EffectiveOptions)]
    assert [d.field for d in resolved.decisions] == names
    assert set(names) == {name for section in FIELD_NAMES.values() for name in section}
    for d in resolved.decisions:
        assert d.effective == getattr(resolved.effective, d.field)
        assert d.why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", "t"),
        ("max_model_len", 100),
        ("block_size", 8),
        ("memory_utilization", 0.5),
        ("num_blocks", 7),
        ("enable_prefix_caching", False),
        ("max_num_batched_tokens", 99),
        ("max_num_seqs", 5),
        ("max_prefill_chunk", 64),
        ("policy", "priority"),
        ("max_queued", 9),
        ("max_queued_tokens", 9000),
        ("tpot_objective", 0.05),
        ("tpot_objective", "off"),
        ("seed", 0),
        ("num_threads", 3),
    ],
)
def test_what_is_asked_for_is_kept(name: str, value: object) -> None:
    found = decision(run(**{name: value}), name)
    assert (found.asked, found.effective, found.overruled) == (value, value, False)
    assert found.why.startswith("as set")


@pytest.mark.parametrize("asked", [{}, {"tpot_objective": "auto"}, {"tpot_objective": None}])
def test_the_objective_is_automatic_where_prompts_can_be_cut(asked: dict[str, object]) -> None:
    found = decision(run(**asked), "tpot_objective")
    assert (found.asked, found.effective, found.overruled) == (None, "auto", False)
    assert "0.2 s" in found.why
    found = decision(run(**asked, enable_chunked_prefill=False), "tpot_objective")
    assert (found.asked, found.effective, found.overruled) == (None, "off", False)
    assert found.why == "enable_chunked_prefill is off, so prompts cannot be cut"
    assert decision(run(tpot_objective="off", enable_chunked_prefill=False), "tpot_objective").why == "as set"
    with pytest.raises(ConfigError, match=r"\[scheduler\] tpot_objective: has no effect while enable_chunked_prefill"):
        run(tpot_objective=0.1, enable_chunked_prefill=False)


def test_a_batch_has_no_objective_unless_it_is_set() -> None:
    options = EngineOptions.from_flat(model="m")
    found = decision(resolve(options, MODEL, hardware(), backends={"cpu": None}, batch=True), "tpot_objective")
    assert (found.asked, found.effective) == (None, "off")
    options = EngineOptions.from_flat(model="m", tpot_objective=0.1)
    assert resolve(options, MODEL, hardware(), backends={"cpu": None}, batch=True).effective.tpot_objective == 0.1


def test_little_memory_lowers_sequences_and_step_size() -> None:
    left = 512 * KV_PER_TOKEN * 10  # ten sequences of typical length
    resolved = run(available=500 * MIB + left, memory_utilization=1.0)
    assert resolved.effective.max_num_seqs == 10
    assert resolved.effective.max_num_batched_tokens == left // 4 // (64 * 1024)
    assert "10 sequences" in decision(resolved, "max_num_seqs").why
    assert "activations" in decision(resolved, "max_num_batched_tokens").why


def test_a_short_context_needs_less_memory_per_sequence() -> None:
    left = 512 * KV_PER_TOKEN * 10
    resolved = run(available=500 * MIB + left, memory_utilization=1.0, max_model_len=256)
    assert resolved.effective.max_num_seqs == 20


def test_no_memory_leaves_the_floor_for_the_memory_plan_to_refuse() -> None:
    effective = run(available=100 * MIB).effective
    assert (effective.max_num_seqs, effective.max_num_batched_tokens) == (4, 256)


def test_a_step_holds_one_token_of_every_sequence() -> None:
    assert run(max_num_seqs=5000).effective.max_num_batched_tokens == 5000
    assert "not every running sequence" in decision(run(max_num_batched_tokens=63), "max_num_batched_tokens").why


def test_whole_prompts_need_steps_as_long_as_the_context() -> None:
    model = dataclasses.replace(MODEL, max_position_embeddings=8192)
    options = EngineOptions.from_flat(model="m", enable_chunked_prefill=False)
    assert resolve(options, model, hardware(), backends={"reference": None}).effective.max_num_batched_tokens == 8192
    assert run(enable_chunked_prefill=False).effective.max_num_batched_tokens == 4096
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens: is 100, but .* max_model_len = 2048"):
        run(enable_chunked_prefill=False, max_num_batched_tokens=100)


def test_a_chunk_longer_than_a_step_is_cut_and_says_so() -> None:
    found = decision(run(max_prefill_chunk=500, max_num_batched_tokens=200), "max_prefill_chunk")
    assert (found.asked, found.effective, found.overruled) == (500, 200, True)
    assert str(found) == ("max_prefill_chunk = 200 (asked: 500): no more than max_num_batched_tokens fit into a step")


def test_the_best_available_backend_is_taken() -> None:
    assert run(backends=("cpu", "reference")).effective.backend == "cpu"
    resolved = run(backends=("cpu", "reference"), backend="reference")
    assert resolved.effective.backend == "reference"
    assert decision(resolved, "backend").asked == "reference"
    assert run(backends=("cpu",), kv_dtype="float16").effective.kv_dtype == "float16"


def test_the_cpu_backend_keeps_halves_unless_told_otherwise() -> None:
    found = decision(run(backends=("cpu",)), "kv_dtype")
    assert (found.effective, found.why) == ("float16", "what backend cpu keeps")
    assert run(backends=("cpu",)).effective.dtype == "float32"
    assert run(backends=("cpu",), kv_dtype="float32").effective.kv_dtype == "float32"
    assert run(backends=("reference",)).effective.kv_dtype == "float32"


def test_half_size_cache_holds_twice_the_sequences() -> None:
    left = 512 * KV_PER_TOKEN * 10
    settings: dict[str, Any] = {"available": 500 * MIB + left, "memory_utilization": 1.0, "backends": ("cpu",)}
    assert run(kv_dtype="float16", **settings).effective.max_num_seqs == 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "triton"}, r"\[model\] backend: triton is not available here \(available: reference\)"),
        ({"backends": ()}, r"\[model\] backend: auto is not available here \(available: none\)"),
        ({"dtype": "bfloat16"}, r"\[model\] dtype: backend reference computes in float32 only, got bfloat16"),
        ({"backends": ("cpu",), "dtype": "float16"}, r"dtype: backend cpu computes in float32 only, got float16"),
        ({"max_model_len": 2049}, r"\[model\] max_model_len: is 2049, but the model was made for 2048 positions"),
        (
            {"enable_chunked_prefill": False, "max_prefill_chunk": 8},
            r"\[scheduler\] max_prefill_chunk: has no effect while enable_chunked_prefill is off",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**settings)


def test_more_threads_than_processors_are_not_taken() -> None:
    found = decision(run(num_threads=7), "num_threads")
    assert (found.effective, found.overruled) == (6, True)
    assert "no more processors are usable" in found.why


def test_what_nobody_asked_for_is_called_a_default() -> None:
    found = decision(run(), "block_size")
    assert (found.asked, found.effective, found.why) == (None, 16, "default")
    found = decision(run(block_size=8), "block_size")
    assert (found.asked, found.effective, found.why) == (8, 8, "as set")


def test_resolving_is_pure() -> None:
    options = EngineOptions.from_flat(model="m")
    backends = {"reference": None}
    first = resolve(options, MODEL, hardware(), backends=backends)
    assert first == resolve(options, MODEL, hardware(), backends=backends)
    assert options == EngineOptions.from_flat(model="m")


def test_facts_must_be_positive() -> None:
    with pytest.raises(ValueError, match="head_dim must be at least 1, got 0"):
        dataclasses.replace(MODEL, head_dim=0)


def test_the_kv_cache_may_have_its_own_type() -> None:
    resolved = run(kv_dtype="float16")
    assert (resolved.effective.dtype, resolved.effective.kv_dtype) == ("float32", "float16")
    assert not decision(resolved, "kv_dtype").overruled


def test_the_weight_cache_is_on_where_the_backend_packs_weights() -> None:
    assert run(backends=("cpu",)).effective.weight_cache
    assert not run(backends=("cpu",), weight_cache=False).effective.weight_cache
    refused = decision(run(weight_cache=True), "weight_cache")
    assert refused.overruled
    assert refused.why == "backend reference does not pack weights"


def test_auto_takes_the_best_backend_that_runs_the_model_and_says_why() -> None:
    options = EngineOptions.from_flat(model="m")
    backends = {"cpu": "its heads are too large", "reference": None}
    resolved = resolve(options, MODEL, hardware(), backends=backends)
    found = decision(resolved, "backend")
    assert found.effective == "reference"
    assert "cpu cannot run this model: its heads are too large" in found.why
    best = resolve(options, MODEL, hardware(), backends={"cpu": None, "reference": None})
    assert best.effective.backend == "cpu"


def test_a_backend_that_cannot_run_the_model_is_refused_with_the_reason() -> None:
    options = EngineOptions.from_flat(model="m", backend="cpu")
    backends = {"cpu": "its heads are too large", "reference": None}
    with pytest.raises(ConfigError, match=r"cpu cannot run this model: its heads are too large\. Use one of: ref"):
        resolve(options, MODEL, hardware(), backends=backends)


@pytest.mark.parametrize(
    ("settings", "effective"),
    [
        ({"speculative": "auto"}, "ngram"),
        ({"speculative": "small"}, "ngram,draft_model"),
        ({"speculative": "draft_model", "draft_model": "small"}, "draft_model"),
        ({"draft_model": "small"}, "off"),
        ({"speculative": "auto", "draft_head": "head"}, "ngram,draft_head"),
        ({"speculative": "draft_head", "draft_head": "head"}, "draft_head"),
    ],
)
def test_who_drafts(settings: dict[str, Any], effective: str) -> None:
    assert run(**settings).effective.speculative == effective


def test_automatic_speculation_says_why_it_is_ngrams_alone() -> None:
    assert decision(run(speculative="auto"), "speculative").why == "no smaller model and no draft head is named"
