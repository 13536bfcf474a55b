"""From settings to an engine that is ready to run: resolve, plan memory, load, assemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.config.decision import Decision
from slipstream.config.env import read_environment
from slipstream.config.resolve import EffectiveOptions, ModelFacts, Resolved, resolve, resolve_backend
from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.cost_model import LinearCostModel
from slipstream.engine.draft_loading import (
    DraftModel,
    LoadedDraft,
    load_draft_model,
    read_draft_model,
    require_same_tokens,
)
from slipstream.engine.footprint import activation_bytes, logits_bytes, rope_bytes
from slipstream.engine.grants import MAX_PROMPT_LOGITS
from slipstream.engine.head_loading import MOST_STATES, LoadedHead, PlannedHead, load_head, read_head
from slipstream.engine.head_states import HeadStates
from slipstream.engine.make_drafts import Drafting, make_drafts
from slipstream.engine.memory import MemoryPlan, plan_memory
from slipstream.engine.model_tokenizer import tokenizer_of
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder
from slipstream.engine.recorder import TimelineRecorder
from slipstream.engine.runner import ForwardModel, ModelRunner
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.errors import ConfigError, InsufficientMemoryError, TokenizerError
from slipstream.features import Feature, require_working
from slipstream.hub.store import packed_dir, profiles_dir, resolve_model
from slipstream.hw.info import HardwareInfo, read_hardware
from slipstream.hw.memory import format_memory
from slipstream.kernels.select import ModelNeeds, backend_refusals, select_kernels, weight_bytes
from slipstream.kv.manager import KVManager
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec, load_model
from slipstream.models.config import ModelConfig
from slipstream.models.draft_head import reduced_output
from slipstream.models.registry import find_family, read_config
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.answers import BYTES_PER_TOKEN as STORE_BYTES_PER_TOKEN
from slipstream.spec.suffix import BYTES_PER_TOKEN
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.open import open_checkpoint
from slipstream.weights.packed_cache import CacheReport
from slipstream.weights.summary import CheckpointSummary, summarize

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)

SAMPLING_BYTES = 24  # per token id and thread: a candidate with its value and weight


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Everything that is decided before a weight is read; what `slipstream inspect` shows."""

    path: Path
    family: str
    config: ModelConfig
    summary: CheckpointSummary
    options: EffectiveOptions
    decisions: tuple[Decision, ...]
    memory: MemoryPlan
    hardware: HardwareInfo
    warnings: tuple[str, ...] = ()  # of loading
    draft: DraftModel | None = None
    head: PlannedHead | None = None


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    plan: EnginePlan
    core: EngineCore
    tokenizer: Tokenizer


def engine_options(model: str | EngineOptions, settings: Mapping[str, Any]) -> EngineOptions:
    """A model's name with settings side by side, or whole options and no settings. Raises ConfigError."""
    if not isinstance(model, EngineOptions):
        return EngineOptions.from_flat(model=model, **settings)
    if settings:
        raise ConfigError("settings go into the EngineOptions.", where=", ".join(settings))
    return model


def inspect_model(options: EngineOptions, *, cache_dir: Path | None = None) -> tuple[EnginePlan, Tokenizer]:
    """What `load_engine` would do, without reading a weight. Raises the same errors."""
    cache_dir = cache_dir or read_environment().cache_dir
    checkpoint = open_checkpoint(resolve_model(options.model.model, cache_dir))
    try:
        plan = _plan(options, checkpoint, read_hardware(), cache_dir)
        return plan, _tokenizer(checkpoint, plan)
    finally:
        checkpoint.close()


def load_engine(
    options: EngineOptions,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    timelines: bool = False,
    batch: bool = False,
) -> LoadedEngine:
    """Load the model that `options` name. `progress` is called while weights are read.

    timelines: keep those of the last finished requests. batch: requests are somebody's who waits for all of them.

    cache_dir: where models are kept; by default SLIPSTREAM_CACHE_DIR, or else the user's cache folder.

    Raises ModelError, UsageError or InsufficientMemoryError before anything sizeable is allocated, and the last also
    when the system then refuses what had seemed to be free.
    """
    try:
        return _load(options, cache_dir or read_environment().cache_dir, progress, timelines, batch)
    except MemoryError as error:
        raise InsufficientMemoryError(
            f"the system refuses memory that seemed to be free ({error}).",
            where=options.model.model,
            fix="Lower max_model_len, max_num_seqs or num_blocks, or raise the limits of this process (`ulimit -v`).",
        ) from error


def _load(
    options: EngineOptions, cache_dir: Path | None, progress: Progress | None, timelines: bool, batch: bool
) -> LoadedEngine:
    checkpoint = open_checkpoint(resolve_model(options.model.model, cache_dir))
    try:
        plan = _plan(options, checkpoint, read_hardware(), cache_dir, batch)
        tokenizer = _tokenizer(checkpoint, plan)
        kernels = select_kernels(plan.options.backend, num_threads=plan.options.num_threads)
        reports: list[CacheReport] = []
        model = load_model(
            checkpoint,
            kernels,
            max_position=plan.options.max_model_len,
            progress=progress,
            packed_folder=packed_dir(cache_dir) if plan.options.weight_cache else None,
            on_cache=reports.append,
        )
        for report in reports:
            plan = _with_cache(plan, report)
        model_files = checkpoint.files
        rows = None if plan.head is None else reduced_output(checkpoint, plan.head.file.draft_ids, kernels)
    finally:
        checkpoint.close()
    spec, num_blocks = plan.memory.spec, plan.memory.num_blocks
    kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
    head_states = None if plan.head is None else HeadStates(MOST_STATES)
    forward: ForwardModel = model if head_states is None else model.with_hidden_states((plan.config.num_layers - 1,))
    forward = forward if kernels.compile is None else kernels.compile(forward, kv)
    grammars = GrammarCompiler(tokenizer, plan.config.vocab_size, tokenizer.eos_token_ids)
    states = GrammarStates(grammars)
    runner = ModelRunner(forward, kv, kernels.to_numpy, states, kernels.sampling, head_states)
    draft: LoadedDraft | LoadedHead | None = None
    if plan.head is not None and rows is not None and head_states is not None:
        draft = load_head(
            plan.head,
            plan.options,
            kernels,
            model,
            rows,
            num_blocks=num_blocks,
            grammars=grammars,
            states=head_states,
        )
    if plan.draft is not None:
        draft = load_draft_model(
            plan.draft,
            plan.options,
            kernels,
            num_blocks=num_blocks,
            vocab_size=plan.config.vocab_size,
            packed_folder=packed_dir(cache_dir) if plan.options.weight_cache else None,
            grammars=grammars,
        )
    drafting = make_drafts(
        plan.options,
        runner,
        states,
        num_blocks=num_blocks,
        folder=profiles_dir(cache_dir),
        model_files=model_files,
        cpu_model=plan.hardware.cpu_model,
        draft=draft,
    )
    plan = replace(plan, decisions=plan.decisions + drafting.decisions, warnings=plan.warnings + drafting.warnings)
    core = EngineCore(
        _scheduler(plan.options, num_blocks, drafting),
        runner,
        tokenizer=tokenizer,
        vocab_size=plan.config.vocab_size,
        max_model_len=plan.options.max_model_len,
        eos_token_ids=tokenizer.eos_token_ids,
        seed=plan.options.seed,
        recorder=TimelineRecorder() if timelines else None,
        grammars=grammars,
        judge_drafts=plan.options.speculative_verification == "rejection",
    )
    return LoadedEngine(plan, core, tokenizer)


def _with_cache(plan: EnginePlan, report: CacheReport) -> EnginePlan:
    decisions = tuple(
        replace(each, effective=report.in_use, why=report.why) if each.field == "weight_cache" else each
        for each in plan.decisions
    )
    warnings = plan.warnings if report.warning is None else (*plan.warnings, report.warning)
    options = replace(plan.options, weight_cache=report.in_use)
    return replace(plan, options=options, decisions=decisions, warnings=warnings)


def _plan(
    options: EngineOptions, checkpoint: Checkpoint, hardware: HardwareInfo, cache_dir: Path | None, batch: bool = False
) -> EnginePlan:
    family = find_family(checkpoint)
    config = read_config(family, checkpoint)
    summary = summarize(checkpoint)
    backends = backend_refusals(ModelNeeds(config.head_dim))
    backend, _ = resolve_backend(options.model.backend, backends)
    held = weight_bytes(backend, ((info.dtype, info.shape) for info in checkpoint.tensors.values()))
    drafter, draft, head = options.speculation, None, None
    if drafter.draft_model is not None and drafter.speculative != "off":
        draft = read_draft_model(drafter.draft_model, cache_dir, backend)
    if drafter.draft_head is not None and drafter.speculative != "off":
        head = read_head(drafter.draft_head, checkpoint, config, backend)
    beside = draft or head
    held += 0 if beside is None else beside.weights
    facts = ModelFacts(
        max_position_embeddings=config.max_position_embeddings,
        weight_bytes=held,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        activation_bytes_per_token=activation_bytes(config, backend),
    )
    resolved = resolve(options, facts, hardware, backends=backends, batch=batch)
    effective = resolved.effective
    memory = plan_memory(
        kv_spec(config, block_size=effective.block_size, dtype=effective.kv_dtype),
        total=hardware.total_memory,
        free=hardware.available_memory,
        weights=held,
        workspace=_workspace(config, effective) + (0 if beside is None else beside.workspace(effective)),
        max_model_len=effective.max_model_len,
        max_num_seqs=effective.max_num_seqs,
        memory_utilization=effective.memory_utilization,
        max_model_len_asked=options.model.max_model_len is not None,
        num_blocks=effective.num_blocks,
        memory_utilization_asked=options.cache.memory_utilization is not None,
        bytes_per_position=rope_bytes(config) + (0 if beside is None else beside.bytes_per_position),
        draft_spec=None if beside is None else beside.spec(effective),
        bytes_per_token=BYTES_PER_TOKEN if "ngram" in effective.speculative else 0,
        store_bytes=_stored(effective) * STORE_BYTES_PER_TOKEN,
    )
    effective, decisions = _with_memory(resolved, memory)
    require_working(active_features(effective, config))
    _settings(effective)
    return EnginePlan(
        checkpoint.path, family.name, config, summary, effective, decisions, memory, hardware, draft=draft, head=head
    )


def active_features(options: EffectiveOptions, config: ModelConfig) -> frozenset[Feature]:
    """What these settings and this model switch on; what each request switches on is not among them."""
    switches = {
        Feature.CONTINUOUS_BATCHING: options.max_num_seqs > 1,
        Feature.CHUNKED_PREFILL: options.enable_chunked_prefill,
        Feature.PREFIX_CACHING: options.enable_prefix_caching,
        Feature.PRIORITY: options.policy == "priority",
        Feature.TPOT_OBJECTIVE: isinstance(options.tpot_objective, float),
        Feature.SLIDING_WINDOW: any(window is not None for window in config.windows),
        Feature.SOFT_CAP: config.attention_soft_cap is not None or config.final_soft_cap is not None,
        Feature.MOE: config.moe is not None,
        Feature.KV_FLOAT16: options.kv_dtype == "float16",
        Feature.SPECULATION: options.speculative != "off",
        Feature.ANSWER_STORE: _stored(options) > 0,
    }
    return frozenset(feature for feature, on in switches.items() if on)


def _stored(options: EffectiveOptions) -> int:
    """Tokens of recent answers that are kept."""
    return 0 if options.speculative == "off" else options.speculative_store_tokens


def _workspace(config: ModelConfig, options: EffectiveOptions) -> int:
    """Activations of the largest step, and twice (for a copy) the logits of what runs and of prompt positions."""
    per_row = 1 if options.speculative == "off" else 1 + options.num_speculative_tokens
    sampled = min(options.max_num_seqs * per_row, options.max_num_batched_tokens)
    logits = logits_bytes(config, sampled + MAX_PROMPT_LOGITS)
    scratch = SAMPLING_BYTES * config.vocab_size * options.num_threads if options.backend == "cpu" else 0
    return options.max_num_batched_tokens * activation_bytes(config, options.backend) + logits + scratch


def _with_memory(resolved: Resolved, memory: MemoryPlan) -> tuple[EffectiveOptions, tuple[Decision, ...]]:
    """The settings that the memory plan decides, put in force."""
    effective = replace(resolved.effective, num_blocks=memory.num_blocks, max_model_len=memory.max_model_len)
    why = {"num_blocks": memory.num_blocks_why, "max_model_len": memory.max_model_len_why}
    if memory.store_bytes:
        why["speculative_store_tokens"] = f"as set; at most {format_memory(memory.store_bytes)} of memory, planned for"
    decisions = tuple(
        replace(each, effective=getattr(effective, each.field), why=why.get(each.field) or each.why)
        for each in resolved.decisions
    )
    return effective, decisions


def _tokenizer(checkpoint: Checkpoint, plan: EnginePlan) -> Tokenizer:
    tokenizer = tokenizer_of(checkpoint, plan.options.tokenizer)
    if tokenizer.vocab_size > plan.config.vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's embedding {plan.config.vocab_size}.",
            where=str(plan.path),
            fix="They do not belong together; name the right one with tokenizer=.",
        )
    if plan.draft is not None:
        require_same_tokens(tokenizer, plan.draft.tokenizer, plan.draft.config.vocab_size)
    return tokenizer


def _settings(options: EffectiveOptions) -> SchedulerSettings:
    """Raises ConfigError for settings that contradict each other."""
    return SchedulerSettings(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        enable_chunked_prefill=options.enable_chunked_prefill,
        max_prefill_chunk=options.max_prefill_chunk,
        tpot_objective=None if options.tpot_objective == "off" else options.tpot_objective,
        max_queued=options.max_queued,
        max_queued_tokens=options.max_queued_tokens,
    )


def _scheduler(options: EffectiveOptions, num_blocks: int, drafting: Drafting) -> Scheduler:
    policy = PriorityOrder() if options.policy == "priority" else FirstComeFirstServed()
    kv = KVManager(num_blocks, options.block_size, options.enable_prefix_caching)
    cost_model = LinearCostModel.taught(drafting.measured)
    return Scheduler(_settings(options), kv, policy=policy, cost_model=cost_model, proposer=drafting.proposer)
