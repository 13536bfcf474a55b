"""A model without tensors: the next token is a hash of the tokens that it reads through the block table.

A wrong table, a stale cached block, a leaked draft or a lost token changes the output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from slipstream.engine.plan import PlanRow, RowResult, StepPlan, StepResult
from slipstream.sampling.logprobs import TokenLogprob

VOCABULARY = 7


def next_token(prefix: Sequence[int], seed: int = 0) -> int:
    digest = hashlib.blake2b(bytes(prefix), digest_size=2, salt=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def sequential(prompt: Sequence[int], max_tokens: int, seed: int = 0, stop: Sequence[int] = ()) -> list[int]:
    """What any schedule must answer."""
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token((*prompt, *output), seed))
        if output[-1] in stop:
            break
    return output


def logprob(prefix: Sequence[int], token: int) -> TokenLogprob:
    return TokenLogprob(token, -float(len(prefix)) - token / 10, 1)


class FakeModel:
    """Holds "KV": the token written at (block, offset), and checks every row."""

    def __init__(self, block_size: int, budget: int, max_rows: int) -> None:
        self.block_size, self.budget, self.max_rows = block_size, budget, max_rows
        self.kv: dict[tuple[int, int], int] = {}
        self.fail: Callable[[str], bool] = lambda _: False

    def run(self, plan: StepPlan) -> StepResult:
        assert 1 <= plan.num_tokens <= self.budget
        assert 1 <= len(plan.rows) <= self.max_rows
        assert len({row.request_id for row in plan.rows}) == len(plan.rows)
        written = [self._slot(row, row.start + j) for row in plan.rows for j in range(len(row.tokens))]
        assert len(set(written)) == len(written), "two positions of one step share a slot"
        for row in plan.rows:
            for j, token in enumerate(row.tokens):
                self.kv[self._slot(row, row.start + j)] = token
        return StepResult(plan.step, tuple(self._answer(row) for row in plan.rows))

    def _slot(self, row: PlanRow, position: int) -> tuple[int, int]:
        return row.blocks[position // self.block_size], position % self.block_size

    def _answer(self, row: PlanRow) -> RowResult:
        assert row.tokens
        if self.fail(row.request_id):
            return RowResult(row.request_id, (), 0, error="boom")
        read = [self.kv[self._slot(row, p)] for p in range(row.start + len(row.tokens))]
        params, seed = row.sampling.params, row.sampling.seed
        first = len(read) - row.num_logits
        asked = range(first, len(read) - (1 + row.num_draft) * row.samples)
        history = row.sampling.history
        prompt = [logprob(read[: p + 1], history[p + 1]) for p in asked]
        assert params.prompt_logprobs is not None or not prompt
        if not row.samples:
            return RowResult(row.request_id, (), 0, prompt_logprobs=tuple(prompt))
        base, tokens = len(read) - row.num_draft, []
        while True:
            end = base + len(tokens)
            tokens.append(next_token(read[:end], seed))
            if end == len(read) or tokens[-1] != read[end]:
                break
        chosen = [logprob(read[: base + i], t) for i, t in enumerate(tokens)] if params.logprobs is not None else []
        return RowResult(row.request_id, tuple(tokens), len(tokens) - 1, tuple(chosen), tuple(prompt))
