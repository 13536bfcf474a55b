"""What a training run is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slipstream.errors import UsageError

MAX_STEPS_AHEAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Checked at construction; raises UsageError that names the option.

    Attributes:
        tokens: tokens of answers that the target writes; training sees their prompts besides.
        epochs: passes over them.
        draft_vocab: tokens that the head can draft: the most frequent ones of the answers.
        steps_ahead: drafted tokens in a row that the head is trained on, each on its own features behind the first.
        batch: tokens per optimiser step, padding included; one sequence at least.
        seed: of prompts, answers, initial weights and order.
        answer_tokens: the longest answer.
        learning_rate: at the end of the warm-up; it then falls to a tenth by half a cosine.
        warm_up: share of all steps in which it rises.
        feature_weight: of the smooth L1 loss of the features (EAGLE, arXiv 2401.15077) beside the cross-entropy.
        prompt_weight: of positions of the prompt, which the target did not write, beside those of the answer.
        step_decay: each further step ahead weighs so much of the one before.
        weight_decay: of matrices (AdamW, arXiv 1711.05101).
    """

    tokens: int = 1_000_000
    epochs: int = 2
    draft_vocab: int = 8192
    steps_ahead: int = 2
    batch: int = 4096
    seed: int = 0
    answer_tokens: int = 320
    learning_rate: float = 2e-4
    warm_up: float = 0.03
    feature_weight: float = 0.1
    prompt_weight: float = 0.3
    step_decay: float = 0.8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        for name, low, high in (
            ("tokens", 1, 10**10),
            ("epochs", 1, 1000),
            ("draft_vocab", 16, 2**24),
            ("steps_ahead", 1, MAX_STEPS_AHEAD),
            ("batch", 64, 2**20),
            ("seed", 0, 2**64 - 1),
            ("answer_tokens", 8, 2**20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"must be from {low} to {high}, not {value}.", where="--" + name.replace("_", "-"))

    def record(self) -> dict[str, Any]:
        return asdict(self)
