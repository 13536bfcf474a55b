"""From stored features to a head in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.text.tokenizer import Tokenizer
from slipstream.training.acceptance import Table, as_json, measure_acceptance
from slipstream.training.examples import Batch, make_batch
from slipstream.training.features import Stored
from slipstream.training.head_config import HeadConfig, write_head
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import Teacher
from slipstream.training.progress import Stage, stage
from slipstream.training.ridge import ridge_fc
from slipstream.training.settings import TrainingSettings
from slipstream.training.shards import write_text
from slipstream.training.target import Target
from slipstream.training.trainer import start_values, train_head
from slipstream.training.vocabulary import draft_ids

if TYPE_CHECKING:
    from slipstream.training.run import TrainingRun

RIDGE_BATCHES = 64


def fit_head(
    run: TrainingRun,
    target: Target,
    tokenizer: Tokenizer,
    stored: Sequence[Stored],
    work: Path,
    num_threads: int,
    start: Mapping[str, NDArray[np.float32]] | None = None,
) -> Table:
    """Train, write the head to run.out, and measure it on held-out answers.

    start: weights to begin with, by their names in a head's file.
    """
    torch.set_num_threads(num_threads)
    settings = run.settings
    seen = [each for each in stored if not each.answer.held_out]
    ids = draft_ids(
        (each.answer.tokens[each.answer.prompt_length :] for each in seen),
        target.config.vocab_size,
        settings.draft_vocab,
        tokenizer.eos_token_ids,
    )
    config = HeadConfig.for_target(target.config, len(ids))
    head = DraftHead(config, max(len(each.answer.tokens) for each in stored))
    teacher = Teacher.of(target, ids)

    def batch_of(some: Sequence[Stored]) -> Batch:
        return make_batch(some, target, settings.prompt_weight)

    if start is None:
        sample = seen[:: max(1, len(seen) // (RIDGE_BATCHES * 4))]
        fc = ridge_fc(batch_of(sample[first : first + 4]) for first in range(0, len(sample), 4))
        start_values(head, fc, teacher, settings.seed)
    else:
        head.load(start)
    lengths = [len(each.answer.tokens) for each in seen]
    checkpoint = work / "checkpoint.safetensors"
    with stage("Training", 0, quiet=run.engine.quiet) as bar:

        def begin(total: int, done: int) -> Stage:
            bar.restart(total, done)
            return bar

        train_head(
            head,
            teacher,
            lengths,
            lambda places: batch_of([seen[place] for place in places]),
            settings,
            checkpoint=checkpoint,
            run=_run_name(settings, target, seen, ids, start),
            begin=begin,
        )
    about = {"name": Path(run.engine.model).name.removesuffix(".gguf"), "fingerprint": target.fingerprint}
    write_head(run.out, config, dict(head.arrays()), ids, about)
    table = measure_acceptance(head, teacher, ids, [each for each in stored if each.answer.held_out], batch_of)
    report = {
        "target": about,
        "settings": settings.record(),
        "trained_on": {
            "answers": len(seen),
            "answer_tokens": sum(each.answer.num_answer_tokens for each in seen),
            "tokens": sum(lengths),
        },
        "acceptance": as_json(table),
    }
    write_text(run.out / "report.json", json.dumps(report, indent=1) + "\n")
    return table


def _run_name(
    settings: TrainingSettings,
    target: Target,
    seen: Sequence[Stored],
    ids: NDArray[np.int32],
    start: Mapping[str, NDArray[np.float32]] | None,
) -> str:
    """Of everything that the result depends on."""
    answers = [(each.answer.index, len(each.answer.tokens)) for each in seen]
    digest = hashlib.sha256(json.dumps([settings.record(), target.fingerprint, answers]).encode())
    digest.update(ids.tobytes())
    for name in sorted(start or ()):
        assert start is not None
        digest.update(start[name].tobytes())
    return digest.hexdigest()
