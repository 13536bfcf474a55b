"""What drafters with a KV pool of their own share: a call drafts for many requests, token by token, all together."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from slipstream.engine.plan import PlanRow, RowResult, RowSampling
from slipstream.engine.request import Request
from slipstream.kv.manager import BlockTable, KVManager
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import plain_draw
from slipstream.spec.drawing import KNOWN, distribution, draw
from slipstream.spec.proposer import NOTHING, Draft, TokenProbs
from slipstream.spec.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class DraftPool:
    """Blocks of a drafter's own KV cache. `max_model_len`: tokens, the most that it can see of a sequence."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_step_tokens: int  # fed in one of its steps
    prefix_caching: bool = True

    def manager(self) -> KVManager:
        return KVManager(self.num_blocks, self.block_size, self.prefix_caching)


@dataclass(slots=True, eq=False)
class Follower:
    """How far a drafter has followed a request; a `KVSequence`."""

    request: Request
    sampling: RowSampling  # the request's own, less what drafting does not need
    computed: int = 0  # positions whose KV is right
    table: BlockTable = field(default_factory=BlockTable)
    last_call: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.request.tokens

    @property
    def cache_salt(self) -> str | None:
        return self.request.cache_salt

    def start_anew(self) -> None:
        """Its blocks are gone."""
        self.computed = 0


F = TypeVar("F", bound=Follower)


@dataclass(slots=True)
class DraftRow(Generic[F]):
    """One draft in the making."""

    index: int  # among those that were asked for
    follower: F
    count: int
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProbs] = field(default_factory=list)  # by token, if they are to be judged
    ended: bool = False

    @property
    def going_on(self) -> bool:
        return not self.ended and len(self.tokens) < self.count


class RowDrafter(ABC, Generic[F]):
    """Drafts are drawn as the requests' own tokens are, with their parameters, grammar and noise; those that are judged
    from the `KNOWN` likeliest tokens by a generator of its own, with their distributions.

    Blocks are taken from requests that are not asked for; where even that does not do, there is no draft. Nothing here
    can fail a request. A call that an exception cuts short leaves nothing behind: the pool begins anew.
    """

    name: str
    piece: int  # tokens per call, of all rows that are further behind than drafting itself leaves them

    def __init__(self, pool: DraftPool, times: StepTimes | None, rng: random.Random | None) -> None:
        self._rng = rng or random.Random()
        self._pool = pool
        self._times = times
        self._kv = pool.manager()
        self._followers: dict[str, F] = {}
        self._calls = 0
        self._unfinished = False

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[Draft]:
        """For each (request, at most so many tokens), in order."""
        if self._unfinished:
            self._followers.clear()
            self._kv = self._pool.manager()
        self._unfinished = True
        self._calls += 1
        drafts = [NOTHING] * len(wanted)
        rows = self._caught_up(self._start(wanted))
        while going_on := [row for row in rows if row.going_on]:
            self._go_on(going_on)
        for row in rows:
            self._drafted(row)
            drafts[row.index] = Draft(tuple(row.tokens), probs=tuple(row.probs) if row.probs else None)
        self._unfinished = False
        return drafts

    def warm_up(self, wanted: Sequence[tuple[Request, int]]) -> None:
        """As `propose` for requests that are nobody's, and forget them."""
        try:
            self.propose(wanted)
        finally:
            for request, _ in wanted:
                self.close(request.id)

    def close(self, key: str) -> None:
        follower = self._followers.pop(key, None)
        if follower is not None:
            self._kv.release(follower)

    @abstractmethod
    def lag(self, request: Request) -> int:
        """Tokens that would have to be fed before the first draft, the newest included."""

    def cost(self, num_rows: int, num_tokens: int) -> float:
        """Seconds for as many tokens of as many rows that lag behind by two tokens, as measured at start-up."""
        if self._times is None or num_rows < 1 or num_tokens < 1:
            return 0.0
        first = self._times.measured(num_rows, 2 * num_rows)
        return first + (num_tokens - 1) * self._times.measured(num_rows, num_rows)

    def feeding(self, num_tokens: int) -> float:
        """Seconds for feeding so many tokens of one request that it lags behind."""
        if self._times is None:
            return 0.0
        pieces, rest = divmod(num_tokens, self.piece)
        whole = pieces * self._times.measured(1, self.piece) if pieces else 0.0
        return whole + (self._times.measured(1, rest) if rest else 0.0)

    def check(self) -> None:
        """Prove that every block is free, cached or owned exactly as counted."""
        self._kv.check(self._followers.values())

    # ---- one call ----

    @abstractmethod
    def _start(self, wanted: Sequence[tuple[Request, int]]) -> list[DraftRow[F]]:
        """Rows with blocks for all that they may be fed."""

    @abstractmethod
    def _caught_up(self, rows: list[DraftRow[F]]) -> list[DraftRow[F]]:
        """Feed what the rows lack, those that lack least first; the ones that have their first token."""

    @abstractmethod
    def _go_on(self, rows: list[DraftRow[F]]) -> None:
        """One more token for each."""

    @abstractmethod
    def _drafted(self, row: DraftRow[F]) -> None:
        """The row's draft is complete."""

    def _portions(self, rows: list[DraftRow[F]], lags: Sequence[int]) -> list[tuple[DraftRow[F], int]]:
        """(row, tokens to feed it), those that lag least first, as far as a step has room; a row that lags further than
        drafts leave it gets a piece only."""
        room, spare = self._pool.max_step_tokens, self.piece
        if sum(lags) <= room and all(0 < lag <= row.count + 1 for row, lag in zip(rows, lags, strict=True)):
            return list(zip(rows, lags, strict=True))
        found: list[tuple[DraftRow[F], int]] = []
        for row, lag in sorted(zip(rows, lags, strict=True), key=lambda each: each[1]):
            usual = lag <= row.count + 1
            feed = min(lag, room if usual else min(spare, room))
            if feed < 1:
                continue
            room -= feed
            spare -= 0 if usual else feed
            found.append((row, feed))
        return found

    def _reserve(self, follower: F, upto: int) -> bool:
        while True:
            hit = None if follower.table.blocks else self._kv.match(follower)
            if self._kv.reserve(follower, upto, hit):
                if hit is not None:
                    follower.computed = hit.num_tokens
                return True
            idle = [each for each in self._followers.values() if each.last_call < self._calls and each.table.blocks]
            if not idle:
                return False
            victim = min(idle, key=lambda each: each.last_call)
            self._kv.release(victim)
            victim.start_anew()

    def _take(self, rows: Sequence[DraftRow[F]], results: Sequence[RowResult]) -> None:
        for row, result in zip(rows, results, strict=True):
            tokens = result.tokens  # none if it could not be drawn: then the draft ends here
            request = row.follower.request
            if tokens and request.judged:
                params = request.params
                top = result.logprobs[0].top
                probs = distribution(
                    top, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
                )
                row.probs.append(probs)
                tokens = (draw(probs, self._rng.random()),)
            row.tokens += tokens
            stop = row.follower.sampling.stop_token_ids
            row.ended = not tokens or result.complete or tokens[-1] in stop


def draft_sampling(request: Request) -> RowSampling:
    """How drafts for the request are drawn, whatever has been drafted."""
    params = replace(request.params, logprobs=None, prompt_logprobs=None, n=1)
    if request.judged:  # what its likeliest tokens are is all that is asked
        params = SamplingParams(temperature=0.0, logprobs=KNOWN)
    sampling = request.row_sampling(samples=False)
    return replace(sampling, params=params, history=(), plain=plain_draw(params, request.seed))


def sampling_behind(row: DraftRow[F]) -> RowSampling:
    """As if the tokens drafted so far were known."""
    request, sampling = row.follower.request, row.follower.sampling
    if request.judged:
        return sampling
    if request.needs_history:
        sampling = replace(sampling, history=(*request.tokens, *row.tokens))
    if request.params.grammar is not None:
        sampling = replace(sampling, output=(*request.output_token_ids, *row.tokens))
    return sampling


def draft_plan_row(row: DraftRow[F], tokens: tuple[int, ...], start: int, *, samples: bool) -> PlanRow:
    """Feed `tokens` behind the first `start` positions of the drafter's KV, and draw one more if it `samples`."""
    follower = row.follower
    return PlanRow(
        request_id=follower.request.id,
        tokens=tokens,
        start=start,
        blocks=follower.table.snapshot(),
        num_draft=0,
        num_logits=int(samples),
        samples=samples,
        sampling=sampling_behind(row) if samples else follower.sampling,
    )
