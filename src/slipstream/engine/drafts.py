"""Who proposes tokens that may follow; the model then verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.plan import StepPlan
from slipstream.engine.recent_answers import NO_STORE, StoreStats
from slipstream.engine.request import Request
from slipstream.kv.manager import KVManager
from slipstream.spec.proposer import NOTHING, Draft


class DraftProposer(Protocol):
    @property
    def max_tokens(self) -> int:
        """The longest draft; 0: there are none."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Who drafts: what a request may ask for ("ngram", "draft_model", "draft_head")."""
        ...

    @property
    def warning(self) -> str:
        """Why drafting is of no use, once that is known; else empty."""
        ...

    @property
    def store(self) -> StoreStats:
        """Of the answers that are drafted from; zeros if there are none."""
        ...

    def propose(self, requests: Sequence[Request]) -> Sequence[Draft]:
        """Tokens that may follow each request's known ones; an empty draft is always allowed. `probs` are for requests
        that are `judged` only."""
        ...

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Compute once what drafting for such requests, which are nobody's, computes; nothing is learned or kept of
        them. Raises what computing raises."""
        ...

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """The step took so long."""
        ...

    def release(self, request: Request) -> None:
        """The request has ended. Called once for each, also for those that were never drafted for."""
        ...


class NoDrafts:
    max_tokens = 0
    names: tuple[str, ...] = ()
    warning = ""
    store = NO_STORE

    def propose(self, requests: Sequence[Request]) -> Sequence[Draft]:
        return [NOTHING] * len(requests)

    def warm_up(self, requests: Sequence[Request]) -> None:
        pass

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        pass

    def release(self, request: Request) -> None:
        pass


def give_drafts(proposer: DraftProposer, requests: Sequence[Request]) -> None:
    """Set what each request verifies next; its last draft was taken back when the answer came."""
    if not requests:
        return
    for request, draft in zip(requests, proposer.propose(requests), strict=True):
        if draft.tokens:
            room = request.max_tokens - request.num_output_tokens - 1  # one more token is sampled after the draft
            draft = draft.cut(max(0, room))
            request.draft, request.draft_probs = draft.tokens, draft.probs


def fit_drafts(requests: Sequence[Request], kv: KVManager) -> None:
    """Cut drafts to the blocks that their requests own already, unless there are blocks for what all of them lack."""
    lacking = [max(0, kv.blocks_for(len(each.tokens) + len(each.draft)) - len(each.blocks)) for each in requests]
    if sum(lacking) <= kv.num_free:
        return
    for request in requests:
        room = max(0, len(request.blocks) * kv.block_size - len(request.tokens))
        if len(request.draft) > room:
            probs = request.draft_probs
            request.draft = request.draft[:room]
            request.draft_probs = None if probs is None else probs[:room]
