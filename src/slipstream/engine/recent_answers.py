"""Drafts from answers of requests that have ended, and what came of them."""

from __future__ import annotations

from collections.abc import Hashable

from slipstream.engine.request import Request
from slipstream.lean import dataclass
from slipstream.spec.answers import LEAD, SHARED, AnswerStore
from slipstream.spec.proposer import Draft


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Tokens held now; drafted tokens from the store that were verified, and those that became output, in all."""

    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


NO_STORE = StoreStats()


class RecentAnswers:
    """A store as requests use it. Those of one tenant and one cache salt share it, nobody else does: what separates
    prefix caches separates answers."""

    def __init__(self, store: AnswerStore) -> None:
        self._store = store
        self._drafted = 0
        self._accepted = 0

    @property
    def stats(self) -> StoreStats:
        return StoreStats(self._store.num_tokens, self._drafted, self._accepted)

    def better(self, request: Request, limit: int, own: Draft) -> Draft:
        """What a recent answer says if it agrees with more of the request's last tokens than its own text does, in
        powers of two (`own`: what that says; maybe nothing), else `own`."""
        found = self._store.draft(_group(request), request.tokens, limit)
        return found if found.tokens and found.evidence > SHARED + own.evidence else own

    def keep(self, request: Request) -> None:
        """The request has ended. One that failed leaves nothing."""
        if request.finish_reason != "error":
            self._store.add(_group(request), request.tokens[max(0, request.num_prompt_tokens - LEAD) :])

    def verified(self, drafted: int, accepted: int) -> None:
        self._drafted += drafted
        self._accepted += accepted


def _group(request: Request) -> Hashable:
    return request.tenant, request.cache_salt
