"""What share of the head's drafts the target would take, by place in the draft and by kind of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from slipstream.sampling.rng import gumbel
from slipstream.training.examples import Batch
from slipstream.training.features import Stored
from slipstream.training.head_module import DraftHead
from slipstream.training.loss import Teacher

DRAFT = 4  # tokens
ALL = "all"
GREEDY, SAMPLED = "greedy", "temperature_1"


@dataclass(slots=True)
class Acceptance:
    """tried[s]: drafts whose first s tokens were right and that had one more; right[s]: those where it was, too."""

    tried: list[int] = field(default_factory=lambda: [0] * DRAFT)
    right: list[int] = field(default_factory=lambda: [0] * DRAFT)

    def add(self, right: NDArray[np.bool_]) -> None:
        """right [DRAFT, n]: whether the token at step s and position i is, its draft having been right so far. A draft
        begins at every position and meets step s at the s-th position behind."""
        alive = np.ones(right.shape[1], np.bool_)
        for step in range(DRAFT):
            alive = alive[: max(0, right.shape[1] - step)]
            self.tried[step] += int(alive.sum())
            alive = alive & right[step, step:]
            self.right[step] += int(alive.sum())

    @property
    def rates(self) -> list[float | None]:
        """Chance of each token of a draft, given that those before it are right; None where none was tried."""
        return [right / tried if tried else None for right, tried in zip(self.right, self.tried, strict=True)]

    @property
    def tokens_per_step(self) -> list[float]:
        """Tokens that a step brings with drafts of 1 ... DRAFT tokens, the one behind the draft included."""
        rates = [each or 0.0 for each in self.rates]
        return [1 + total for total in accumulate(accumulate(rates, mul))]


Table = dict[str, dict[str, Acceptance]]  # by mode and domain, ALL among them


def measure_acceptance(
    head: DraftHead,
    teacher: Teacher,
    draft_ids: NDArray[np.int32],
    stored: Sequence[Stored],
    batch_of: Callable[[Sequence[Stored]], Batch],
) -> Table:
    """Over answers that were not trained on, those that are greedy and those at temperature 1 apart.

    A greedy draft is the likeliest token. At temperature 1 it is drawn with the noise that the answer's own token was
    drawn with (Gumbel-max), as the engine drafts. Either is right where it is the answer's token.
    """
    found: Table = {GREEDY: {ALL: Acceptance()}, SAMPLED: {ALL: Acceptance()}}
    for each in stored:
        right = _right(head, teacher, draft_ids, each, batch_of([each]))
        table = found[SAMPLED if each.answer.temperature else GREEDY]
        for name in (ALL, each.answer.domain):
            table.setdefault(name, Acceptance()).add(right)
    return found


def _right(
    head: DraftHead, teacher: Teacher, draft_ids: NDArray[np.int32], stored: Stored, batch: Batch
) -> NDArray[np.bool_]:
    """[DRAFT, n] over the positions of the answer whose token after next is known."""
    answer = stored.answer
    first, last = answer.prompt_length - 1, len(answer.tokens) - 2
    right = np.zeros((DRAFT, max(0, last - first)), np.bool_)
    if not right.size:
        return right
    with torch.no_grad():
        outputs = head(torch.from_numpy(batch.features), torch.from_numpy(batch.embeddings), DRAFT)
        logits = [functional.linear(head.normed(each[0, first:last]), teacher.rows).numpy() for each in outputs]
    noise = np.stack(list(_noise(answer.temperature, answer.seed, range(first + 2, last + 2), draft_ids)))
    truth = answer.tokens[first + 2 :]
    for step, each in enumerate(logits):
        right[step] = draft_ids[np.argmax(each + noise, 1)] == truth
    return right


def _noise(
    temperature: float, seed: int, positions: range, draft_ids: NDArray[np.int32]
) -> Iterator[NDArray[np.float64] | float]:
    for position in positions:
        yield gumbel(seed, position, draft_ids) if temperature else np.zeros(len(draft_ids))


def as_json(table: Table) -> dict[str, dict[str, dict[str, list[float | None] | list[float] | list[int]]]]:
    return {
        mode: {
            domain: {
                "acceptance": [None if rate is None else round(rate, 4) for rate in each.rates],
                "tried": each.tried,
                "tokens_per_step": [round(value, 4) for value in each.tokens_per_step],
            }
            for domain, each in sorted(domains.items())
            if each.tried[0]
        }
        for mode, domains in table.items()
    }
