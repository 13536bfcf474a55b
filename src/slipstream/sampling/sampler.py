"""Verify or sample: one code path, with zero drafts for plain decoding.

The token at absolute index p of a sequence is argmax over ids of z[id] + gumbel(seed, p)[id], z being the processed,
scaled and truncated logits: an exact draw from softmax(z) (Gumbel-max). At temperature 0 it is argmax of the
processed logits. Equal maxima go to the lowest id.

A draft is accepted if it equals the token that is drawn at its place, whoever proposed it, so the output with
drafts is the output without (drafter-invariant speculation, arXiv 2408.07978). Only where a row's drafts were drawn at
random and come with their distributions, they are judged by rejection sampling instead (see `rejection`): the tokens
are others than without drafts then, but have the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FailureKind, GrammarError, RequestError
from slipstream.kernels.sampling import Draw, SamplingOps
from slipstream.lean import dataclass
from slipstream.sampling.filters import kept_tokens, scale_by_temperature
from slipstream.sampling.logprobs import TokenLogprob, finite_maximum, logits_fault, token_logprobs
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import apply_processors, needs_processing
from slipstream.sampling.rejection import judge
from slipstream.sampling.rng import gumbel

LogitsRow = NDArray[np.float32]  # [V]


class RowContext(Protocol):
    """What sampling knows about a row besides its logits; `engine.plan.RowSampling` fits."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def history(self) -> tuple[int, ...]: ...  # tokens 0 .. first_position - 1; unread unless params.needs_history
    @property
    def max_tokens(self) -> int | None: ...  # of the output; read with a grammar only


class Grammar(Protocol):
    """A row's place in its grammar; `sampling.grammar.state.GrammarState` fits."""

    @property
    def finished(self) -> bool: ...
    def allowed(self, scores: NDArray[np.floating], context: RowContext, *, position: int) -> NDArray[np.bool_]: ...
    def advance(self, tokens: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row to sample: owns 1 + len(draft_tokens) consecutive rows of the logits."""

    context: RowContext
    first_position: int  # absolute index of the first token to be drawn = number of tokens known, drafts excluded
    draft_tokens: tuple[int, ...] = ()
    grammar: Callable[[], Grammar] | None = None  # the state behind the known tokens; may raise RequestError
    draft_probs: tuple[tuple[tuple[int, float], ...], ...] | None = None  # per draft token, what it was drawn from


@dataclass(frozen=True, slots=True)
class SampledRow:
    """`tokens`: the accepted drafts and then one drawn token; empty if `error` is set."""

    tokens: tuple[int, ...]
    accepted: int
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked
    error: str | None = None
    complete: bool = False  # the grammar allows nothing after the last token
    error_kind: FailureKind | None = None


def sample_rows(
    logits: NDArray[np.float32], rows: Sequence[SampleRow], ops: SamplingOps | None = None
) -> list[SampledRow]:
    """Sample or verify every row.

    logits: float32 [L, V], L = sum of 1 + len(draft_tokens), in the order of `rows`; left unchanged. Logits i of a
    row predict the token at first_position + i. A row that cannot be sampled (NaN or infinite logits, every token
    forbidden, a token id outside the vocabulary) gets an `error`; the others are not affected. Where that is so behind
    right drafts only, the last of these counts as the token that was drawn. `ops`: a backend's form of what follows,
    which gives the same tokens. Raises ValueError if L does not fit the rows.
    """
    wanted = len(rows) + sum([len(row.draft_tokens) for row in rows])
    if logits.ndim != 2 or len(logits) != wanted or (wanted and logits.shape[1] == 0):
        raise ValueError(f"logits of shape {logits.shape} for rows that need [{wanted}, V].")
    drawn = {} if ops is None else _draw_unprocessed(logits, rows, ops)
    results: list[SampledRow] = []
    start = 0
    for row in rows:
        end = start + 1 + len(row.draft_tokens)
        try:
            if start in drawn:
                results.append(_verify(logits, start, row, drawn, ops))
            else:
                results.append(_sample_row(logits[start:end], row, ops))
        except RequestError as error:
            kind: FailureKind | None = "grammar" if isinstance(error, GrammarError) else None
            results.append(SampledRow(tokens=(), accepted=0, error=str(error), error_kind=kind))
        start = end
    return results


def sample_token(
    logits: LogitsRow,
    context: RowContext,
    *,
    position: int,
    accepted_drafts: tuple[int, ...] = (),
    grammar: Grammar | None = None,
    ops: SamplingOps | None = None,
    drawn: tuple[int, tuple[tuple[int, float], ...]] | None = None,
) -> int:
    """The token at absolute index `position`. Raises RequestError if there is none.

    `grammar` masks the processed scores, before temperature and filters; it is not advanced. `drawn`: a draft and the
    distribution that it was drawn from; at temperature 0 there is nothing to judge, and it is not read.
    """
    params = context.params
    scores = _scores(logits, context, position, accepted_drafts, grammar)
    if drawn is not None and not params.greedy:
        scaled = scale_by_temperature(scores, params.temperature)
        kept = kept_tokens(scaled, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
        return judge(scaled, kept, *drawn, context.seed, position)
    if ops is not None:
        processed = np.ascontiguousarray(scores, np.float64)
        token, _ = ops.draw_processed(processed, _draw_of(context, position))
        return token
    if params.greedy:
        return int(scores.argmax())
    scaled = scale_by_temperature(scores, params.temperature)
    kept = kept_tokens(scaled, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    if kept is None:
        return int((scaled + gumbel(context.seed, position, len(scaled))).argmax())
    kept = np.sort(kept)  # so that equal maxima go to the lowest id
    return int(kept[(scaled[kept] + gumbel(context.seed, position, kept)).argmax()])


def _scores(
    logits: LogitsRow,
    context: RowContext,
    position: int,
    accepted_drafts: tuple[int, ...],
    grammar: Grammar | None,
) -> NDArray[np.floating]:
    """Behind processors and grammar; some token is allowed."""
    params = context.params
    finite_maximum(logits)
    scores: NDArray[np.floating] = logits
    if needs_processing(params, position=position, num_prompt_tokens=context.num_prompt_tokens):
        scores = apply_processors(
            logits,
            params,
            history=context.history + accepted_drafts,
            position=position,
            num_prompt_tokens=context.num_prompt_tokens,
            stop_token_ids=context.stop_token_ids,
        )
        if scores.max() == -np.inf:
            raise RequestError(f"the sampling parameters forbid every token at position {position}.")
    if grammar is not None:
        scores = np.where(grammar.allowed(scores, context, position=position), scores, -np.inf)
        if scores.max() == -np.inf:
            raise RequestError(f"grammar and sampling parameters together forbid every token at position {position}.")
    return scores


def _draw_of(context: RowContext, position: int) -> Draw:
    params = context.params
    return params.temperature, params.top_k, params.top_p, params.min_p, context.seed, position


def _draw_unprocessed(
    logits: NDArray[np.float32], rows: Sequence[SampleRow], ops: SamplingOps
) -> dict[int, int | RequestError]:
    """By row of the logits: what is drawn there, for all positions of the rows that nothing processes."""
    entries: list[tuple[int, Draw]] = []
    start = 0
    for row in rows:
        context, position = row.context, row.first_position
        count = 1 + len(row.draft_tokens)
        judged = row.draft_probs is not None and not context.params.greedy
        if (
            row.grammar is None
            and not judged
            and not needs_processing(context.params, position=position, num_prompt_tokens=context.num_prompt_tokens)
        ):
            for i in range(count):
                entries.append((start + i, _draw_of(context, position + i)))
        start += count
    if not entries:
        return {}
    tokens, faults = ops.draw(logits, entries)
    drawn: dict[int, int | RequestError] = {at: token for (at, _), token in zip(entries, tokens, strict=True)}
    for index, fault in faults:
        drawn[entries[index][0]] = logits_fault(fault)
    return drawn


def _verify(
    logits: NDArray[np.float32],
    start: int,
    row: SampleRow,
    drawn: dict[int, int | RequestError],
    ops: SamplingOps | None,
) -> SampledRow:
    """The row's result from what was drawn at all of its positions."""
    tokens: list[int] = []
    for i in range(1 + len(row.draft_tokens)):
        token = drawn[start + i]
        if isinstance(token, RequestError):
            if tokens:
                break  # the request may have ended before this position; if not, it is drawn for again
            raise token
        tokens.append(token)
        if i < len(row.draft_tokens) and token != row.draft_tokens[i]:
            break
    num_top = row.context.params.logprobs
    logprobs = () if num_top is None else token_logprobs(logits[start : start + len(tokens)], tokens, num_top, ops)
    return SampledRow(tuple(tokens), len(tokens) - 1, logprobs)


def _sample_row(logits: NDArray[np.float32], row: SampleRow, ops: SamplingOps | None) -> SampledRow:
    num_top = row.context.params.logprobs
    grammar = None if row.grammar is None else row.grammar()
    tokens: list[int] = []
    for i, row_logits in enumerate(logits):
        drawn = None
        if row.draft_probs is not None and i < len(row.draft_tokens):
            drawn = row.draft_tokens[i], row.draft_probs[i]
        try:
            token = sample_token(
                row_logits,
                row.context,
                position=row.first_position + i,
                accepted_drafts=row.draft_tokens[:i],
                grammar=grammar,
                ops=ops,
                drawn=drawn,
            )
        except RequestError:
            if tokens:
                break  # as in `_verify`
            raise
        tokens.append(token)
        if grammar is not None:
            grammar.advance((token,))
        if i < len(row.draft_tokens) and (token != row.draft_tokens[i] or (grammar is not None and grammar.finished)):
            break
    complete = grammar is not None and grammar.finished
    logprobs = () if num_top is None else token_logprobs(logits[: len(tokens)], tokens, num_top, ops)
    return SampledRow(tuple(tokens), len(tokens) - 1, logprobs, complete=complete)
