"""The training loop."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.training.checkpoint import load_checkpoint, save_checkpoint
from slipstream.training.examples import Batch, epoch_order
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import Teacher, losses
from slipstream.training.progress import Stage
from slipstream.training.settings import TrainingSettings

SAVE_EVERY = 100  # steps
MAX_NORM = 1.0


def learning_rate(step: int, total: int, settings: TrainingSettings) -> float:
    """Of step 0 ... total - 1: a linear warm-up, then half a cosine down to a tenth."""
    warm = max(1, round(settings.warm_up * total))
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    share = (step - warm) / max(1, total - warm)
    return settings.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))


def new_optimizer(head: DraftHead, settings: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW, without decay of norms."""
    matrices = [each for each in head.parameters() if each.dim() > 1]
    vectors = [each for each in head.parameters() if each.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
    )


def train_head(
    head: DraftHead,
    teacher: Teacher,
    lengths: Sequence[int],
    batch_of: Callable[[list[int]], Batch],
    settings: TrainingSettings,
    *,
    checkpoint: Path,
    run: str,
    begin: Callable[[int, int], Stage],
    stop_after: int | None = None,
) -> None:
    """Trains `head` in place, from the checkpoint of this run if there is one: the result is the same, bit for bit on
    one machine with one number of threads.

    lengths: of the sequences; batch_of: makes the batch of some of them; begin: called with (all tokens, tokens of the
    steps that the checkpoint has).

    Raises KeyboardInterrupt on Ctrl-C (and after `stop_after` steps of this call), behind a whole step that is then in
    the checkpoint.
    """
    plan = [
        batch
        for epoch in range(settings.epochs)
        for batch in epoch_order(lengths, settings.batch, settings.seed, epoch)
    ]
    sizes = [sum(lengths[each] for each in batch) for batch in plan]
    optimizer = new_optimizer(head, settings)
    done = load_checkpoint(checkpoint, head, optimizer, run) or 0
    stage = begin(sum(sizes), sum(sizes[:done]))
    shown: list[float] = []
    with _interruptible() as interrupted:
        for step in range(done, len(plan)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, len(plan), settings)
            found = losses(
                head,
                teacher,
                batch_of(plan[step]),
                steps=settings.steps_ahead,
                feature_weight=settings.feature_weight,
                step_decay=settings.step_decay,
            )
            optimizer.zero_grad(set_to_none=True)
            found.total.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(head.parameters(), MAX_NORM)
            optimizer.step()
            now = [float(found.total.detach()), *found.agreement]
            shown = now if not shown else [0.95 * old + 0.05 * new for old, new in zip(shown, now, strict=True)]
            stage.advance(sizes[step], f"loss {shown[0]:.3f}, right {'/'.join(f'{each:.3f}' for each in shown[1:])}")
            stopped = interrupted.is_set() or step + 1 - done == stop_after
            if stopped or (step + 1) % SAVE_EVERY == 0 or step + 1 == len(plan):
                save_checkpoint(checkpoint, head, optimizer, step + 1, run)
            if stopped:
                raise KeyboardInterrupt


def start_values(head: DraftHead, fc: NDArray[np.float32], teacher: Teacher, seed: int) -> None:
    """`fc` as given, the norm the target's, and a layer that adds nothing yet."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    with torch.no_grad():
        for name in head.config.shapes():
            parameter = getattr(head, name.replace(".", "_"))
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5)
        head.weight("fc").copy_(torch.from_numpy(fc))
        head.weight("norm").copy_(teacher.norm)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of breaking into a step; a second one does break in."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
