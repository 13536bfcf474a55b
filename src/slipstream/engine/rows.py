"""One request's part of a step: the row that asks, and the check that the answer fits."""

from __future__ import annotations

from slipstream.engine.plan import PlanRow, RowResult
from slipstream.engine.request import Request
from slipstream.errors import EngineError


def build_row(request: Request, num_tokens: int) -> PlanRow:
    """Feed the next `num_tokens` after the computed ones: known tokens, then drafts.

    Raises EngineError for a row that would feed nothing: logits come from fed positions only.
    """
    known, end = len(request.tokens), request.computed + num_tokens
    tokens = (*request.tokens[request.computed : end], *request.draft[: max(0, end - known)])
    if num_tokens < 1 or len(tokens) != num_tokens:
        raise EngineError(f"{num_tokens} tokens were granted where {len(tokens)} can be fed.", where=request.id)
    num_draft = max(0, end - known)
    samples = end >= known
    sampled = 1 + num_draft if samples else 0
    return PlanRow(
        request_id=request.id,
        tokens=tokens,
        start=request.computed,
        blocks=request.table.snapshot(),
        num_draft=num_draft,
        num_logits=num_tokens if request.lacks_prompt_logprobs else sampled,
        samples=samples,
        sampling=request.row_sampling(samples=samples),
        draft_probs=None if request.draft_probs is None or not num_draft else request.draft_probs[:num_draft],
        wants_states=request.wants_states,
    )


def check_answer(row: PlanRow, answer: RowResult) -> None:
    """Raise EngineError unless the answer fits the row: a runner's defect is stopped before it becomes text."""
    same = answer.request_id == row.request_id
    if same and row.sampling.plain and not row.num_draft and not answer.accepted and len(answer.tokens) == row.samples:
        return
    draft = row.tokens[len(row.tokens) - row.num_draft :]
    num_prompt_logprobs = row.num_logits - (1 + row.num_draft if row.samples else 0)
    wants_prompt_logprobs = row.sampling.params.prompt_logprobs is not None
    if (
        not same
        or not 0 <= answer.accepted <= row.num_draft
        or len(answer.tokens) != (answer.accepted + 1 if row.samples else 0)
        or answer.tokens[: answer.accepted] != draft[: answer.accepted]
        or (wants_prompt_logprobs and len(answer.prompt_logprobs) != num_prompt_logprobs)
    ):
        raise EngineError(f"the runner's answer does not match its row: {answer}", where=f"request {row.request_id}")
