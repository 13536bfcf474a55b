"""A step in the making."""

from __future__ import annotations

from dataclasses import field

from slipstream.engine.request import Request
from slipstream.lean import dataclass

MAX_PROMPT_LOGITS = 256  # positions per step; each costs a row of vocabulary size, where sampling needs one per row


@dataclass(slots=True)
class Grants:
    """Tokens granted to each request, and what is left of the step's budget."""

    left: int
    tokens: dict[Request, int] = field(default_factory=dict)
    preempted: int = 0
    prompt_logits_left: int = MAX_PROMPT_LOGITS

    def limit(self, request: Request, num_tokens: int) -> int:
        """`num_tokens`, or fewer if the request wants the logits of them all (prompt log-probabilities)."""
        return min(num_tokens, max(0, self.prompt_logits_left)) if request.lacks_prompt_logprobs else num_tokens

    def give(self, request: Request, num_tokens: int) -> None:
        self.left -= num_tokens
        if request.params.prompt_logprobs is not None:
            self._count_logits(request, num_tokens)
        self.tokens[request] = num_tokens

    def withdraw(self, request: Request) -> None:
        num_tokens = self.tokens.pop(request, 0)
        self.left += num_tokens
        self._count_logits(request, -num_tokens)

    def _count_logits(self, request: Request, num_tokens: int) -> None:
        if request.lacks_prompt_logprobs:
            self.prompt_logits_left -= num_tokens
