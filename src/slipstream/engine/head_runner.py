"""Runs the draft head: as a model is run, over hidden states beside the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.batcher import BatchBuilder
from slipstream.engine.plan import PlanRow, RowResult, StepPlan, StepResult, StepTiming
from slipstream.engine.runner import sample_step
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.sampling import Draw, SamplingOps
from slipstream.kernels.table import Tensor
from slipstream.kv.storage import KVStorage
from slipstream.sampling.grammar.states import GrammarStates

Floats = NDArray[np.float32]
HeadModel = Callable[[ForwardBatch, KVStorage], tuple[Tensor, Tensor]]

LEAST = np.float32(-1e30)  # a logit that no draw ever chooses


@dataclass(frozen=True, slots=True, eq=False)
class HeadRow:
    """`plan`: positions count from the first one that the head was shown; `shift` more is what a token's position in
    the request is then. states: [tokens of the row, n]."""

    plan: PlanRow
    shift: int
    states: Floats


class HeadRunner:
    """Implements `Runner` too, over states of zero, so that steps can be timed."""

    def __init__(
        self,
        model: HeadModel,
        kv: KVStorage,
        to_numpy: Callable[[Tensor], Floats],
        *,
        hidden_size: int,
        vocab_size: int,
        draft_ids: NDArray[np.int32],
        grammars: GrammarStates | None = None,
        sampling: SamplingOps | None = None,
    ) -> None:
        """vocab_size: of the target; a token that is not among draft_ids is never drafted."""
        self._batches = BatchBuilder(kv.spec.block_size)
        self._model = model
        self._kv = kv
        self._to_numpy = to_numpy
        self.hidden_size = hidden_size
        self._ids = draft_ids
        self._grammars = grammars
        self._sampling = sampling
        self._wide = np.full((0, vocab_size), LEAST)

    def run(self, rows: Sequence[HeadRow]) -> tuple[tuple[RowResult, ...], list[Floats]]:
        """(what the rows come to, what the head makes of each row's last token [n])."""
        if len(rows) == 1:
            row = rows[0]
            logits, made = self._forward(StepPlan(0, (row.plan,)), row.states)
            return self._drawn(rows, logits), [made[-1]]
        plan = StepPlan(0, tuple([row.plan for row in rows]))
        logits, made = self._forward(plan, np.concatenate([row.states for row in rows]))
        ends = np.cumsum([len(row.plan.tokens) for row in rows]) - 1
        return self._drawn(rows, logits), list(made[ends])

    def _drawn(self, rows: Sequence[HeadRow], logits: Floats) -> tuple[RowResult, ...]:
        found = self._drawn_plainly(rows, logits)
        if found is not None:
            return found
        placed = [replace(row.plan, start=row.plan.start + row.shift) for row in rows]
        return sample_step(placed, self._widened(logits), self._grammars, self._sampling)

    def _drawn_plainly(self, rows: Sequence[HeadRow], logits: Floats) -> tuple[RowResult, ...] | None:
        """Of rows that all sample, with nothing between logits and token but what the backend can do on the reduced
        vocabulary; None if there are others."""
        if self._sampling is None:
            return None
        entries: list[tuple[int, Draw]] = []
        for index, row in enumerate(rows):
            plan = row.plan
            plain = plan.sampling.plain
            if plain is None or not plan.samples:
                return None
            entries.append((index, (*plain, plan.start + row.shift + len(plan.tokens))))
        tokens, faults = self._sampling.draw_reduced(logits, self._ids, entries)
        if faults:
            return None
        return tuple([RowResult(row.plan.request_id, (token,), 0) for row, token in zip(rows, tokens, strict=True)])

    def execute(self, plan: StepPlan) -> StepResult:
        started = perf_counter()
        logits, _ = self._forward(plan, np.zeros((plan.num_tokens, self.hidden_size), np.float32))
        computed = perf_counter()
        rows = sample_step(plan.rows, self._widened(logits), self._grammars, self._sampling)
        return StepResult(plan.step, rows, StepTiming(0.0, computed - started, perf_counter() - computed))

    def _forward(self, plan: StepPlan, states: Floats) -> tuple[Floats, Floats]:
        logits, made = self._model(self._batches.build(plan).with_inputs(states), self._kv)
        return self._to_numpy(logits), self._to_numpy(made)

    def _widened(self, logits: Floats) -> Floats:
        """[L, draft_vocab] at the places of the tokens in [L, vocab]."""
        if len(self._wide) < len(logits):
            self._wide = np.full((len(logits), self._wide.shape[1]), LEAST)
        wide = self._wide[: len(logits)]
        wide[:, self._ids] = logits
        return wide
