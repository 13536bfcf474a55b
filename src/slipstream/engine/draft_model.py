"""Drafts by a smaller model: it runs ahead of each request in a KV pool of its own, all rows together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slipstream.engine.plan import PlanRow, RowResult, RowSampling, StepPlan
from slipstream.engine.request import Request
from slipstream.engine.runner import Runner
from slipstream.kv.manager import BlockTable, KVManager
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import plain_draw
from slipstream.spec.drawing import KNOWN, distribution, draw
from slipstream.spec.proposer import NOTHING, Draft, TokenProbs
from slipstream.spec.step_times import StepTimes

CATCH_UP = 256  # tokens per call, of all rows that are further behind than drafting itself leaves them


@dataclass(frozen=True, slots=True)
class DraftPool:
    """Blocks of the draft model's own KV cache. `max_model_len`: tokens, the most that it can see of a sequence."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_step_tokens: int  # fed in one of its steps
    prefix_caching: bool = True

    def manager(self) -> KVManager:
        return KVManager(self.num_blocks, self.block_size, self.prefix_caching)


@dataclass(slots=True, eq=False)
class _Follower:
    """How far the draft model has followed a request; a `KVSequence`."""

    request: Request
    sampling: RowSampling  # the request's own, less what drafting does not need
    computed: int = 0
    table: BlockTable = field(default_factory=BlockTable)
    known: int = 0  # tokens of the request when it was last drafted for
    fed: tuple[int, ...] = ()  # the drafted tokens that were then fed behind those
    last_call: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.request.tokens

    @property
    def cache_salt(self) -> str | None:
        return self.request.cache_salt

    @property
    def lag(self) -> int:
        """Known tokens whose KV is missing, the newest included."""
        return len(self.request.tokens) - self.computed

    def catch_on(self) -> None:
        """Keep the KV of those drafted tokens that have become the request's."""
        tokens = self.request.tokens
        right = 0
        while right < len(self.fed) and self.known + right < len(tokens) - 1:
            if self.fed[right] != tokens[self.known + right]:
                break
            right += 1
        if self.fed:
            self.computed = self.known + right
            self.fed = ()


@dataclass(slots=True)
class _Row:
    """One draft in the making."""

    index: int  # among those that were asked for
    follower: _Follower
    count: int
    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProbs] = field(default_factory=list)  # by token, if they are to be judged
    ended: bool = False

    @property
    def going_on(self) -> bool:
        return not self.ended and len(self.tokens) < self.count


class ModelDrafter:
    """Drafts what the smaller model would say, drawn as the request's own tokens are: with its parameters, its
    grammar and the noise of its seed at each position (so drafts are the likelier to be right the more alike the two
    distributions are, at any temperature: drafter-invariant coupling, arXiv 2408.07978), greedily at temperature 0.
    Drafts that are judged are drawn from the `KNOWN` likeliest tokens by a generator of its own, and come with their
    distributions.

    A request is first drafted for when its whole text has been fed: what the draft model lacks, because the request is
    new, was preempted or was served by another proposer, is fed in pieces of `CATCH_UP` tokens per call. Blocks are
    taken from those that are not asked for; where even that does not do, there is no draft. Nothing here can fail a
    request. A call that an exception cuts short leaves nothing behind: the pool begins anew.
    """

    name = "draft_model"

    def __init__(
        self,
        runner: Runner,
        pool: DraftPool,
        vocab_size: int,
        times: StepTimes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """runner: of the draft model over its own pool; its logits are as wide as the target's. vocab_size: tokens
        that it can be fed. times: of its steps; without them drafting counts as free. rng: what drafts that are
        judged are drawn with; None: one seeded by the system."""
        self._rng = rng or random.Random()
        self._runner = runner
        self._pool = pool
        self._vocab_size = vocab_size
        self._times = times
        self._kv = pool.manager()
        self._followers: dict[str, _Follower] = {}
        self._calls = self._steps = 0
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
            self._take(going_on, self._run([_next(row) for row in going_on]))
        for row in rows:
            follower = row.follower
            follower.known, follower.fed = len(follower.tokens), tuple(row.tokens[:-1])
            drafts[row.index] = Draft(tuple(row.tokens), probs=tuple(row.probs) if row.probs else None)
        self._unfinished = False
        return drafts

    def close(self, key: str) -> None:
        follower = self._followers.pop(key, None)
        if follower is not None:
            self._kv.release(follower)

    def lag(self, request: Request) -> int:
        """Tokens that would have to be fed before the first draft, the newest included."""
        follower = self._followers.get(request.id)
        if follower is None:
            return len(request.tokens)
        follower.catch_on()
        return follower.lag

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
        pieces, rest = divmod(num_tokens, CATCH_UP)
        whole = pieces * self._times.measured(1, CATCH_UP) if pieces else 0.0
        return whole + (self._times.measured(1, rest) if rest else 0.0)

    def check(self) -> None:
        """Prove that every block is free, cached or owned exactly as counted."""
        self._kv.check(self._followers.values())

    # ---- one call ----

    def _start(self, wanted: Sequence[tuple[Request, int]]) -> list[_Row]:
        """Rows with blocks for all that they may be fed."""
        found: list[_Row] = []
        for index, (request, count) in enumerate(wanted):
            # The last drafted token is never fed.
            count = min(count, self._pool.max_model_len - len(request.tokens) + 1)
            if count > 0 and self._can_read(request):
                follower = self._follower(request)
                follower.last_call = self._calls
                found.append(_Row(index, follower, count))
        return [row for row in found if self._reserve(row.follower, len(row.follower.tokens) + row.count - 1)]

    def _can_read(self, request: Request) -> bool:
        """Ids that a model pads its vocabulary with may be out of the other model's reach."""
        follower = self._followers.get(request.id)
        start = 0 if follower is None else follower.known
        return max(request.tokens[start:], default=0) < self._vocab_size

    def _follower(self, request: Request) -> _Follower:
        follower = self._followers.get(request.id)
        if follower is None:
            params = replace(request.params, logprobs=None, prompt_logprobs=None, n=1)
            if request.judged:  # what its likeliest tokens are is all that is asked
                params = SamplingParams(temperature=0.0, logprobs=KNOWN)
            sampling = replace(
                request.row_sampling(samples=False), params=params, history=(), plain=plain_draw(params, request.seed)
            )
            follower = self._followers[request.id] = _Follower(request, sampling)
        follower.catch_on()
        self._kv.commit(follower)
        return follower

    def _reserve(self, follower: _Follower, upto: int) -> bool:
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
            victim.computed, victim.known, victim.fed = 0, 0, ()

    def _caught_up(self, rows: list[_Row]) -> list[_Row]:
        """Feed what the rows lack, those that lack least first; the ones that have their first token."""
        room, spare = self._pool.max_step_tokens, CATCH_UP
        fed: list[_Row] = []
        plan: list[PlanRow] = []
        for row in sorted(rows, key=lambda each: each.follower.lag):
            follower = row.follower
            usual = follower.lag <= row.count + 1
            feed = min(follower.lag, room if usual else min(spare, room))
            if feed < 1:
                continue
            room -= feed
            spare -= 0 if usual else feed
            fed.append(row)
            plan.append(_feed(row, feed))
        if not plan:
            return []
        results = self._run(plan)
        for row, part in zip(fed, plan, strict=True):
            row.follower.computed += len(part.tokens)
            row.follower.known = len(row.follower.tokens)
            self._kv.commit(row.follower)
        ready = [(row, result) for row, part, result in zip(fed, plan, results, strict=True) if part.samples]
        self._take([row for row, _ in ready], [result for _, result in ready])
        return [row for row, _ in ready if row.tokens]

    def _run(self, rows: list[PlanRow]) -> Sequence[RowResult]:
        self._steps += 1
        return self._runner.execute(StepPlan(self._steps, tuple(rows))).rows

    def _take(self, rows: Sequence[_Row], results: Sequence[RowResult]) -> None:
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


def _feed(row: _Row, num_tokens: int) -> PlanRow:
    follower = row.follower
    start, end = follower.computed, follower.computed + num_tokens
    return _plan_row(row, tuple(follower.tokens[start:end]), start, samples=end == len(follower.tokens))


def _next(row: _Row) -> PlanRow:
    return _plan_row(row, (row.tokens[-1],), len(row.follower.tokens) + len(row.tokens) - 1, samples=True)


def _plan_row(row: _Row, tokens: tuple[int, ...], start: int, *, samples: bool) -> PlanRow:
    follower = row.follower
    return PlanRow(
        request_id=follower.request.id,
        tokens=tokens,
        start=start,
        blocks=follower.table.snapshot(),
        num_draft=0,
        num_logits=int(samples),
        samples=samples,
        sampling=_sampling(row) if samples else follower.sampling,
    )


def _sampling(row: _Row) -> RowSampling:
    """As if the tokens drafted so far were known."""
    request, sampling = row.follower.request, row.follower.sampling
    if request.judged:
        return sampling
    if request.needs_history:
        sampling = replace(sampling, history=(*request.tokens, *row.tokens))
    if request.params.grammar is not None:
        sampling = replace(sampling, output=(*request.output_token_ids, *row.tokens))
    return sampling
