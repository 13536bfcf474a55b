"""A whole training: prompts, answers, features, head, report; each stage goes on where an earlier run ended."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ConfigError, DiskSpaceError, UsageError
from slipstream.hub.disk import format_bytes, free_bytes
from slipstream.models.draft_head_file import read_draft_head, require_fit
from slipstream.training.answers import Task, first_answers, read_answers, tasks_of
from slipstream.training.default_prompts import default_prompts
from slipstream.training.own_texts import OwnTexts
from slipstream.training.prompts import Prompt, read_prompts
from slipstream.training.settings import TrainingSettings
from slipstream.training.shards import write_text
from slipstream.training.stdlib_sources import read_library
from slipstream.training.target import Target
from slipstream.training.target_engine import TargetEngine

if TYPE_CHECKING:
    from slipstream.training.acceptance import Table

WORK = "training"  # folder beside the head
MIN_PROMPTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What is trained, from what, and where to.

    data: prompts; None: the model's own, and some made from the standard library. resume: go on in `out`. init: a head
    of the same model to begin with, instead of an untrained one.
    """

    engine: TargetEngine
    out: Path
    settings: TrainingSettings
    data: Path | None = None
    resume: bool = False
    init: Path | None = None


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
    settings = run.settings
    prompts = None if run.data is None else _enough(read_prompts(run.data), run.data)
    plan, tokenizer = run.engine.inspect()
    target = run.engine.read_target(plan)
    start = None if run.init is None else read_start(run.init, target)
    work = _claim(run, target)
    _require_space(run, work, target.config.hidden_size)

    def tasks() -> Iterator[Task]:
        found = default_prompts(read_library(), settings.seed, own) if prompts is None else prompts
        yield from tasks_of(found, settings.seed)

    own = OwnTexts()
    if prompts is None:
        own = run.engine.own_texts(plan, work, tokens=settings.tokens, seed=settings.seed)

    run.engine.answer(plan, tasks(), work, tokens=settings.tokens, longest=settings.answer_tokens)
    answers = first_answers(read_answers(work).values(), settings.tokens)
    if not any(each.held_out for each in answers) or all(each.held_out for each in answers):
        raise UsageError(f"{len(answers)} answers are too few.", where="--tokens", fix="Ask for more tokens.")
    stored = run.engine.features(plan, answers, work)
    from slipstream.training.fit import fit_head  # PyTorch takes seconds to import

    return fit_head(run, target, tokenizer, stored, work, plan.options.num_threads, start)


def read_start(folder: Path, target: Target) -> Mapping[str, NDArray[np.float32]]:
    """The weights of a head. Raises ModelFormatError or UnsupportedModelError for a folder that is none of this
    model's."""
    head = read_draft_head(folder)
    require_fit(head, target.config.hidden_size, target.config.vocab_size, target.fingerprint)
    return head.weights


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


def _claim(run: TrainingRun, target: Target) -> Path:
    """The folder for answers, features and checkpoint. Raises UsageError if `out` holds anything else's."""
    work = run.out / WORK
    record = {
        "target": target.fingerprint,
        "data": f"Python {platform.python_version()} and the model" if run.data is None else _digest(run.data),
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
