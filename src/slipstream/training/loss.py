"""How far the head's drafts are from what the target would say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from slipstream.training.examples import Batch
from slipstream.training.head_module import DraftHead
from slipstream.training.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """rows [D, hidden]: the target's output rows of the draft vocabulary; norm [hidden]: its final norm."""

    rows: Tensor
    norm: Tensor
    eps: float

    @classmethod
    def of(cls, target: Target, draft_ids: NDArray[np.int32]) -> Teacher:
        rows = torch.from_numpy(target.head[draft_ids])
        return cls(rows, torch.from_numpy(target.norm), target.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden] -> [N, D]."""
        return functional.linear(functional.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps), self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """total: to be minimised. agreement: of each step, the share of positions, by weight, where the likeliest token of
    the draft vocabulary is the target's."""

    total: Tensor
    agreement: tuple[float, ...]


def losses(
    head: DraftHead, teacher: Teacher, batch: Batch, *, steps: int, feature_weight: float, step_decay: float
) -> Losses:
    """Cross-entropy to the target's distribution over the draft vocabulary, plus the smooth L1 distance of features
    over their root mean square; averaged over positions by weight and over steps by step_decay ** step."""
    wanted = torch.from_numpy(batch.wanted)
    weights = torch.from_numpy(batch.weights)
    outputs = head(torch.from_numpy(batch.features), torch.from_numpy(batch.embeddings), steps)
    used = weights > 0
    hidden = wanted[used]
    size = hidden.square().mean(-1, keepdim=True).sqrt() + 1e-12
    with torch.no_grad():
        right = teacher.logits(hidden)
        best = right.argmax(-1)
        probs = torch.softmax(right, -1)
    position = torch.arange(weights.shape[1]).expand_as(weights)[used]
    total = torch.zeros(())
    agreement: list[float] = []
    for step, output in enumerate(outputs):
        own = weights[used] * (position >= step)
        own = own / own.sum().clamp_min(1e-12)
        made = output[used]
        logits = functional.linear(head.normed(made), teacher.rows)
        entropy = functional.cross_entropy(logits, probs, reduction="none")
        distance = functional.smooth_l1_loss(made / size, hidden / size, reduction="none").mean(-1)
        total = total + step_decay**step * (own * (entropy + feature_weight * distance)).sum()
        agreement.append(float((own * (logits.detach().argmax(-1) == best)).sum()))
    return Losses(total / sum(step_decay**step for step in range(steps)), tuple(agreement))
