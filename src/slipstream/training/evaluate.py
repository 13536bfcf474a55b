"""What a trained head would reach on other prompts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from slipstream.models.draft_head_file import read_draft_head, require_fit
from slipstream.training.acceptance import Table, measure_acceptance
from slipstream.training.answers import read_answers, tasks_of
from slipstream.training.examples import make_batch
from slipstream.training.head_config import HeadConfig
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import Teacher
from slipstream.training.prompts import read_prompts
from slipstream.training.target_engine import TargetEngine


def evaluate_head(engine: TargetEngine, folder: Path, data: Path, *, longest: int, seed: int) -> Table:
    """The model answers every prompt of `data` twice, greedily and at temperature 1, with `longest` tokens at most; the
    head in `folder` is then asked for drafts everywhere in its answers.

    Raises UsageError, ModelError, and UnsupportedModelError if the head was trained for another model.
    """
    prompts = read_prompts(data)
    plan, _ = engine.inspect()
    target = engine.read_target(plan)
    file = read_draft_head(folder)
    require_fit(file, target.config.hidden_size, target.config.vocab_size, target.fingerprint)
    torch.set_num_threads(plan.options.num_threads)
    with TemporaryDirectory(prefix="slipstream-") as work:
        tasks = islice(tasks_of(prompts, seed), 2 * len(prompts))
        engine.answer(plan, tasks, Path(work), tokens=2 * len(prompts) * longest, longest=longest)
        answers = sorted(read_answers(Path(work)).values(), key=lambda each: each.index)
        stored = engine.features(plan, answers, Path(work))
        head = DraftHead(HeadConfig.of_file(file.config), max(len(each.tokens) for each in answers))
        head.load(file.weights)
        teacher = Teacher.of(target, file.draft_ids)
        return measure_acceptance(
            head, teacher, file.draft_ids, stored, lambda some: make_batch(some, target, prompt_weight=0.0)
        )
