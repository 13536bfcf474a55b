"""A whole training: prompts, answers, features, head, report; each stage goes on where an earlier run ended."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config.types import EngineOptions
from slipstream.engine.llm import LLM
from slipstream.engine.loading import EnginePlan, inspect_model
from slipstream.errors import ConfigError, DiskSpaceError, UsageError
from slipstream.hub.disk import format_bytes, free_bytes
from slipstream.hub.store import packed_dir
from slipstream.kernels.select import select_kernels
from slipstream.models.build import load_model
from slipstream.text.tokenizer import Tokenizer
from slipstream.training.answers import Answer, first_answers, read_answers, tasks_of, write_answers
from slipstream.training.default_prompts import default_prompts
from slipstream.training.features import HiddenStates, Stored, write_features
from slipstream.training.progress import stage
from slipstream.training.prompts import Prompt, read_prompts
from slipstream.training.settings import TrainingSettings
from slipstream.training.shards import write_text
from slipstream.training.stdlib_sources import read_library
from slipstream.training.target import Target, read_target, refuse_unsupported
from slipstream.weights.open import open_checkpoint

if TYPE_CHECKING:
    from slipstream.training.acceptance import Table

WORK = "training"  # folder beside the head
MIN_PROMPTS = 16
MAX_LENGTH = 2048  # tokens of prompt and answer
MAX_SEQS = 48
BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What is trained, from what, and where to.

    data: prompts; None: made from the standard library. resume: go on in `out`. quiet: no bars.
    """

    model: str
    out: Path
    settings: TrainingSettings
    data: Path | None = None
    resume: bool = False
    backend: str = "auto"
    num_threads: int | None = None
    cache_dir: Path | None = None
    quiet: bool = False


def train_draft_head(run: TrainingRun) -> Table:
    """Carries out `run` and returns the acceptance on held-out answers, which is also written beside the head.

    Raises:
        ConfigError: PyTorch is missing.
        UsageError: a folder, file or setting that does not fit, before any work.
        DiskSpaceError: the disk will not hold the hidden states.
        UnsupportedModelError: a model for which no head can be trained.
        KeyboardInterrupt: Ctrl-C; everything done is kept for `resume`.
    """
    require_torch()
    prompts = None if run.data is None else _enough(read_prompts(run.data), run.data)
    plan, tokenizer = _inspect(run)
    refuse_unsupported(plan.config)
    checkpoint = open_checkpoint(plan.path)
    try:
        target = read_target(checkpoint)
    finally:
        checkpoint.close()
    work = _claim(run, target)
    _require_space(run, work, target.config.hidden_size)
    answers = _answers(run, plan, work, prompts)
    if not any(each.held_out for each in answers) or all(each.held_out for each in answers):
        raise UsageError(f"{len(answers)} answers are too few.", where="--tokens", fix="Ask for more tokens.")
    stored = _features(run, plan, work, answers)
    from slipstream.training.fit import fit_head  # PyTorch takes seconds to import

    return fit_head(run, target, tokenizer, stored, work, plan.options.num_threads)


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "training needs PyTorch, which is not installed.",
            fix="Install it with: pip install 'slipstream-llm[torch]'",
        )


def _enough(prompts: list[Prompt], path: Path) -> list[Prompt]:
    if len(prompts) < MIN_PROMPTS:
        raise UsageError(f"has {len(prompts)} prompts, {MIN_PROMPTS} at least are needed.", where=str(path))
    return prompts


def _inspect(run: TrainingRun) -> tuple[EnginePlan, Tokenizer]:
    """The plan of an engine that answers; its pool is as large as it needs, not as large as memory."""
    options = _engine_options(run, None, None)
    plan, tokenizer = inspect_model(options, cache_dir=run.cache_dir)
    length = min(plan.options.max_model_len, MAX_LENGTH)
    wanted = min(plan.memory.num_blocks, -(-length // BLOCK) * MAX_SEQS)
    return inspect_model(_engine_options(run, length, wanted), cache_dir=run.cache_dir)[0], tokenizer


def _engine_options(run: TrainingRun, max_model_len: int | None, num_blocks: int | None) -> EngineOptions:
    return EngineOptions.from_flat(
        model=run.model,
        backend=run.backend,
        num_threads=run.num_threads,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        max_num_seqs=MAX_SEQS,
        block_size=BLOCK,
        enable_prefix_caching=False,
    )


def _claim(run: TrainingRun, target: Target) -> Path:
    """The folder for answers, features and checkpoint. Raises UsageError if `out` holds anything else's."""
    work = run.out / WORK
    record = {
        "target": target.fingerprint,
        "data": f"Python {platform.python_version()}" if run.data is None else _digest(run.data),
        "seed": run.settings.seed,
        "answer_tokens": run.settings.answer_tokens,
    }
    path = work / "run.json"
    if run.out.exists() and not run.out.is_dir():
        raise UsageError("is not a folder.", where=str(run.out))
    if not path.exists():
        if run.out.exists() and any(run.out.iterdir()):
            raise UsageError("is not empty.", where=str(run.out), fix="Name another folder for --out.")
        if run.resume:
            raise UsageError("holds no training to go on with.", where=str(run.out), fix="Leave --resume out.")
        work.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1) + "\n")
        return work
    if not run.resume:
        raise UsageError(
            "holds an earlier training.", where=str(run.out), fix="Go on with --resume, or name another folder."
        )
    _same(record, json.loads(path.read_text(encoding="utf-8")), run.out)
    return work


def _same(record: dict[str, Any], earlier: dict[str, Any], out: Path) -> None:
    for name, value in record.items():
        if earlier.get(name) != value:
            raise UsageError(
                f"was begun with another {name.replace('_', ' ')} ({earlier.get(name)}, not {value}).",
                where=str(out),
                fix="Name another folder for --out.",
            )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _require_space(run: TrainingRun, work: Path, hidden_size: int) -> None:
    """For hidden states of the answers and of prompts of the same length."""
    needed = 2 * run.settings.tokens * 2 * hidden_size - sum(each.stat().st_size for each in work.iterdir())
    free = free_bytes(work)
    if free < needed:
        raise DiskSpaceError(
            f"hidden states of {run.settings.tokens} tokens may take {format_bytes(needed)} more, "
            f"but {format_bytes(free)} are free.",
            where=str(work),
            fix="Ask for fewer --tokens, or name another folder for --out.",
        )


def _answers(run: TrainingRun, plan: EnginePlan, work: Path, prompts: Iterable[Prompt] | None) -> list[Answer]:
    settings = run.settings
    done = sum(each.num_answer_tokens for each in read_answers(work).values())
    if done < settings.tokens:
        if prompts is None:
            prompts = default_prompts(read_library(), settings.seed)
        options = _engine_options(run, plan.options.max_model_len, plan.options.num_blocks)
        with (
            LLM(options, cache_dir=run.cache_dir) as llm,
            stage("Answers", settings.tokens, done=done, quiet=run.quiet) as bar,
        ):
            longest = min(settings.answer_tokens, plan.options.max_model_len // 2)
            tasks = tasks_of(prompts, settings.seed)
            write_answers(llm, tasks, work, tokens=settings.tokens, longest=longest, stage=bar)
    return first_answers(read_answers(work).values(), settings.tokens)


def _features(run: TrainingRun, plan: EnginePlan, work: Path, answers: Sequence[Answer]) -> list[Stored]:
    longest = max(len(each.tokens) for each in answers)
    kernels = select_kernels(plan.options.backend, num_threads=plan.options.num_threads)
    checkpoint = open_checkpoint(plan.path)
    try:
        model = load_model(
            checkpoint,
            kernels,
            max_position=plan.options.max_model_len,
            packed_folder=packed_dir(run.cache_dir) if plan.options.weight_cache else None,
        )
    finally:
        checkpoint.close()
    compute = HiddenStates(model, kernels, max_length=longest, kv_dtype=plan.memory.spec.dtype)
    with stage("Features", sum(len(each.tokens) for each in answers), quiet=run.quiet) as bar:
        return write_features(answers, compute, work, bar)
