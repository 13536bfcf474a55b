"""Carries out a StepPlan: batch, model, sampling. Keeps no request state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.engine.batcher import BatchBuilder
from slipstream.engine.plan import PlanRow, RowResult, StepPlan, StepResult, StepTiming
from slipstream.errors import RequestError
from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.sampling import Draw, SamplingOps
from slipstream.kernels.table import Tensor
from slipstream.kv.storage import KVStorage
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.sampling.logprobs import TokenLogprob, token_logprobs
from slipstream.sampling.sampler import SampledRow, SampleRow, sample_rows

ForwardModel = Callable[[ForwardBatch, KVStorage], Tensor]
StatesSink = Callable[[StepPlan, NDArray[np.float32]], None]


class Runner(Protocol):
    """The seam between scheduling and computing; may live in another process, since plans are self-contained."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class ModelRunner:
    """Runs one model over one KV cache.

    `to_numpy` brings logits to the host as float32 [L, V]. Without `grammars` a row that has a grammar fails.
    `sampling`: the backend's form of sampling. `states`: given the hidden states [T, n] of every step's tokens, rows in
    plan order, before anything is sampled; `model` then gives a tuple, logits first, and what follows side by side.
    """

    def __init__(
        self,
        model: ForwardModel,
        kv: KVStorage,
        to_numpy: Callable[[Tensor], NDArray[np.float32]],
        grammars: GrammarStates | None = None,
        sampling: SamplingOps | None = None,
        states: StatesSink | None = None,
    ) -> None:
        self._states = states
        self._grammars = grammars
        self._sampling = sampling
        self._batches = BatchBuilder(kv.spec.block_size)
        self._model = model
        self._kv = kv
        self._to_numpy = to_numpy

    def execute(self, plan: StepPlan) -> StepResult:
        """One forward pass over all rows. A row whose sampling fails gets `error`; the others are not affected."""
        started = perf_counter()
        batch = self._batches.build(plan)
        built = perf_counter()
        results = self._model(batch, self._kv)
        if self._states is None:
            logits = self._to_numpy(results)
        else:
            logits, *states = [self._to_numpy(each) for each in results]
            self._states(plan, states[0] if len(states) == 1 else np.concatenate(states, axis=1))
        computed = perf_counter()
        rows = sample_step(plan.rows, logits, self._grammars, self._sampling)
        timing = StepTiming(built - started, computed - built, perf_counter() - computed)
        return StepResult(plan.step, rows, timing)


def sample_step(
    rows: Sequence[PlanRow], logits: NDArray[np.float32], grammars: GrammarStates | None, ops: SamplingOps | None
) -> tuple[RowResult, ...]:
    """What the rows' logits [L, V], in their order, come to."""
    return _sample_plain(rows, logits, ops) or _sample(rows, logits, grammars, ops)


def _sample_plain(
    rows: Sequence[PlanRow], logits: NDArray[np.float32], ops: SamplingOps | None
) -> tuple[RowResult, ...] | None:
    """What `_sample` gives when every token of every row is drawn from its logits as they are; None for all else."""
    if ops is None:
        return None
    entries: list[tuple[int, Draw]] = []
    for row in rows:
        plain, count = row.sampling.plain, row.num_draft
        if plain is None or not row.samples or row.num_logits != 1 + count or row.draft_probs is not None:
            return None
        position = row.start + len(row.tokens) - count
        for i in range(1 + count):
            entries.append((len(entries), (*plain, position + i)))
    if len(entries) != len(logits):
        return None
    tokens, faults = ops.draw(logits, entries)
    if faults:
        return None
    if len(tokens) == len(rows):
        return tuple([RowResult(row.request_id, (token,), 0) for row, token in zip(rows, tokens, strict=True)])
    results, end = [], 0
    for row in rows:
        start, end = end, end + 1 + row.num_draft
        accepted = _agreeing(row.tokens[len(row.tokens) - row.num_draft :], tokens[start:end])
        results.append(RowResult(row.request_id, tuple(tokens[start : start + accepted + 1]), accepted))
    return tuple(results)


def _agreeing(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """How many tokens of the draft are right."""
    for i, token in enumerate(draft):
        if token != drawn[i]:
            return i
    return len(draft)


def _sample(
    rows: Sequence[PlanRow], logits: NDArray[np.float32], grammars: GrammarStates | None, ops: SamplingOps | None
) -> tuple[RowResult, ...]:
    """Split logits [L, V] into the rows' own, sample those that want it, add prompt log-probabilities."""
    ends = list(accumulate([row.num_logits for row in rows]))
    needed = [
        at for row, end in zip(rows, ends, strict=True) if row.samples for at in range(end - 1 - row.num_draft, end)
    ]
    wanted = logits if len(needed) == len(logits) else logits[np.array(needed, np.intp)]
    sampled = iter(sample_rows(wanted, [_sample_row(row, grammars) for row in rows if row.samples], ops))
    results = []
    for row, end in zip(rows, ends, strict=True):
        drawn = next(sampled) if row.samples else SampledRow(tokens=(), accepted=0)
        error, kind = drawn.error, drawn.error_kind
        prompt: tuple[TokenLogprob, ...] = ()
        if row.sampling.params.prompt_logprobs is not None and error is None:
            try:
                prompt = _prompt_logprobs(row, logits[end - row.num_logits : end], ops)
            except RequestError as failure:
                error = str(failure)
        results.append(
            RowResult(row.request_id, drawn.tokens, drawn.accepted, drawn.logprobs, prompt, error, drawn.complete, kind)
        )
    return tuple(results)


def _sample_row(row: PlanRow, grammars: GrammarStates | None) -> SampleRow:
    known = len(row.tokens) - row.num_draft
    spec = row.sampling.params.grammar
    grammar = None if spec is None else partial(_grammar, grammars, row, spec)
    return SampleRow(row.sampling, row.start + known, row.tokens[known:], grammar, row.draft_probs)


def _grammar(grammars: GrammarStates | None, row: PlanRow, spec: GrammarSpec) -> GrammarState:
    if grammars is None:
        raise RequestError("this runner knows no grammars.")
    return grammars.at(row.request_id, spec, row.sampling.output)


def _prompt_logprobs(row: PlanRow, logits: NDArray[np.float32], ops: SamplingOps | None) -> tuple[TokenLogprob, ...]:
    """For each logits position p of the row whose next token is still in the prompt: that token's log-probability."""
    num_top = row.sampling.params.prompt_logprobs
    assert num_top is not None
    first = row.start + len(row.tokens) - len(logits)
    count = max(0, min(len(logits), row.sampling.num_prompt_tokens - 1 - first))
    targets = row.sampling.history[first + 1 : first + 1 + count]
    return token_logprobs(logits[:count], targets, num_top, ops)
