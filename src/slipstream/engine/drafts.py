"""Who proposes tokens that may follow; the model then verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream.engine.request import Request


class DraftProposer(Protocol):
    def propose(self, requests: Sequence[Request]) -> Sequence[Sequence[int]]:
        """Tokens that may follow each request's known ones; an empty draft is always allowed."""
        ...


class NoDrafts:
    def propose(self, requests: Sequence[Request]) -> Sequence[Sequence[int]]:
        return [()] * len(requests)
