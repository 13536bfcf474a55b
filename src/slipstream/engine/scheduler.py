"""Decides what every step computes. Pure bookkeeping: no tensors, no clock, no threads."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.engine.admission import (
    AdaptiveLimit,
    SequenceLimit,
    refuse_impossible,
    refuse_too_many,
    watermark_blocks,
)
from slipstream.engine.cost_model import LinearCostModel, StepCostModel, plan_work, work_of
from slipstream.engine.deadlines import Deadlines
from slipstream.engine.drafts import DraftProposer, NoDrafts, fit_drafts, give_drafts
from slipstream.engine.forks import Forks
from slipstream.engine.grants import Grants
from slipstream.engine.objective import PromptRoom
from slipstream.engine.plan import PlanRow, RowResult, StepPlan, StepResult
from slipstream.engine.queue import FirstComeFirstServed, QueuePolicy, WaitingQueue
from slipstream.engine.request import FinishReason, Request, RequestStatus
from slipstream.engine.rows import build_row, check_answer
from slipstream.engine.running import RunningSet
from slipstream.engine.settings import SchedulerSettings
from slipstream.engine.steady import steady_rows
from slipstream.engine.updates import RequestUpdate, SchedulerStats
from slipstream.engine.victims import choose_victim, rank
from slipstream.errors import EngineError, InvalidParamsError
from slipstream.kv.manager import KVManager


class Scheduler:
    """plan -> (run the step) -> apply, one step in flight at a time; add, abort and finish at any moment.

    One rule: `computed` chases tokens + draft. A prefill chunk, a decode and the verification of a draft differ
    only in the numbers of their row.

    Fairness. Every decoding request gets its token in every step, before any draft is fed. When blocks run out
    one of those that come last (see `victims`) is preempted and recomputes later. Protected requests rank before all
    others and among themselves by age, so the oldest of them is never a victim: it ends, and then the next one does.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVManager,
        *,
        policy: QueuePolicy | None = None,
        limit: SequenceLimit | None = None,
        cost_model: StepCostModel | None = None,
        proposer: DraftProposer | None = None,
    ) -> None:
        self.settings = settings
        self.kv = kv
        self._policy = policy or FirstComeFirstServed()
        self._limit = limit or AdaptiveLimit(settings.max_num_seqs)
        self._cost_model = cost_model or LinearCostModel()
        self.proposer = proposer or NoDrafts()
        self.queue = WaitingQueue(self._policy, settings.max_queued, settings.max_queued_tokens)
        chunk = settings.max_prefill_chunk if settings.enable_chunked_prefill else None
        self._max_chunk = chunk or settings.max_num_batched_tokens
        self._watermark = watermark_blocks(kv.num_blocks, settings.watermark)
        self._requests: dict[str, Request] = {}  # unfinished, and finished ones of the step in flight
        self._running = RunningSet(lambda request: rank(self._policy, request))
        self._forks = Forks(kv)
        self._deadlines = Deadlines(self._cost_model, self.queue.rates)
        self._updates: list[RequestUpdate] = []
        self._in_flight: StepPlan | None = None
        self._planned_at = 0.0
        self._sampled: list[Request] = []  # in the last step, not drafted for yet
        self._step = self._added = self._preempted = 0

    # ---- requests come and go ----

    def check(self, request: Request, n: int = 1) -> None:
        """Raise RequestTooLargeError if `n` of the request could never be added, however empty the engine is."""
        refuse_impossible(request, self.kv, self.settings.max_num_batched_tokens, self.settings.enable_chunked_prefill)
        refuse_too_many(request, n, self.settings.max_queued)

    def require_room(self, request: Request, n: int = 1, now: float | None = None) -> None:
        """Raise QueueFullError if `n` of the request cannot be added, DeadlineError if they would end too late."""
        self.queue.require_room(request, n - 1)
        now = request.arrival if now is None else now
        self._deadlines.refuse_hopeless(request, now, self._running, self.queue, self.kv.usage().hit_rate)

    def add(self, request: Request) -> None:
        """Raises RequestTooLargeError, QueueFullError, or InvalidParamsError for an id that is in use."""
        if request.id in self._requests:
            raise InvalidParamsError("a request with this id is not finished yet.", where=f"request {request.id}")
        refuse_impossible(request, self.kv, self.settings.max_num_batched_tokens, self.settings.enable_chunked_prefill)
        self.queue.require_room(request, places=False)
        request.order = self._added
        self._added += 1
        self._requests[request.id] = request
        self.queue.shares.enter(request.tenant)
        self._deadlines.add(request)
        parent = self._requests.get(request.fork_of) if request.fork_of is not None else None
        if parent is not None and not parent.finished:
            self._forks.add(request, parent)
        self.queue.push(request)

    def abort(self, request_id: str, now: float) -> RequestUpdate | None:
        return self.finish(request_id, "abort", now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> RequestUpdate | None:
        """End a request from outside (a client left, a stop string was found). None if it has ended already.

        Blocks that the step in flight writes to are released when that step is applied.
        """
        request = self._requests.get(request_id)
        if request is None or request.finished:
            return None
        request.finish_reason = reason
        in_flight = self._in_flight is not None and request.last_step == self._in_flight.step
        self._end(request, now, keep_blocks=in_flight)
        return RequestUpdate(request, finish_reason=reason)

    def drain(self) -> list[RequestUpdate]:
        """Updates that no `apply` returned: what ended in `plan`. Call it when `plan` returns None."""
        updates, self._updates = self._updates, []
        return updates

    @property
    def has_unfinished(self) -> bool:
        """Whether `plan` or `drain` still has something to say."""
        return bool(self._running) or len(self.queue) > 0 or bool(self._updates)

    @property
    def requests(self) -> Iterable[Request]:
        """All that may own blocks, for `KVManager.check`."""
        return self._requests.values()

    def stats(self) -> SchedulerStats:
        limit = min(self.settings.max_num_seqs, self._limit.limit)
        return SchedulerStats(
            self._step,
            len(self._running),
            len(self.queue) + self.queue.places.num_requests,
            self._preempted,
            limit,
            self.kv.usage(),
            self.queue.num_tokens + self.queue.places.num_tokens,
            self._deadlines.num_shed,
        )

    # ---- a step begins ----

    def draft(self) -> None:
        """Draft for what the last step advanced; `plan` does it if nobody has. Cut short, there are no drafts."""
        sampled, self._sampled = self._sampled, []
        give_drafts(self.proposer, [each for each in sampled if each.status is RequestStatus.RUNNING])

    def plan(self, now: float, drafting: float = 0.0) -> StepPlan | None:
        """The next step, or None if nothing is left to do.

        `now`: seconds, never going back. `drafting`: seconds that `draft` took before; streams have waited for it.
        """
        self.draft()
        if self._in_flight is not None:
            raise EngineError(f"step {self._in_flight.step} was planned but neither applied nor discarded.")
        if self._deadlines:
            self._expire(now)
        if not self._running and len(self.queue) == 0:
            return None
        grants = Grants(self.settings.max_num_batched_tokens)
        rows = steady_rows(self._running.by_rank(), self.queue, self.kv, grants.left, now)
        if rows is None:
            room = self._grant_running(grants, drafting)
            if not grants.preempted:
                self._admit(grants, room, now)
            if not grants.tokens:
                raise EngineError(f"nothing could be scheduled of {len(self._requests)} unfinished requests.")
            rows = tuple([build_row(request, n) for request, n in grants.tokens.items()])
        self._step += 1
        self._limit.observe(self._step, len(self._running), grants.preempted)
        for row in rows:
            self._requests[row.request_id].last_step = self._step
        self._in_flight, self._planned_at = StepPlan(self._step, rows), now
        return self._in_flight

    def _grant_running(self, grants: Grants, drafting: float) -> PromptRoom:
        """Decodes, then prefills under way. Returns what the step can still take of prompts.

        Requests are admitted only into budget that is left, so no more run than the budget has tokens. Each decode
        gets one; drafts get what is spare after a token for everybody, in turns if that is too little for all.
        """
        ranked = self._running.by_rank()
        decodes = [r for r in ranked if r.decoding]
        prefills = [r for r in ranked if not r.decoding] if len(decodes) < len(ranked) else []
        if any(r.draft for r in decodes):
            fit_drafts(ranked, self.kv)
        scarce = len(ranked) + sum([len(r.draft) for r in decodes]) > grants.left
        turn = self._step % len(decodes) if scarce and decodes else 0
        others = len(self._running)
        for request in decodes[turn:] + decodes[:turn]:
            others -= 1
            if request in self._running:
                self._grant(request, max(1, min(request.pending, grants.left - others)), grants)
        granted = work_of((request.computed, n) for request, n in grants.tokens.items())
        objective, least = self.settings.tpot_objective, self.settings.min_prefill_chunk
        room = PromptRoom(self._cost_model, objective, granted, drafting=drafting, min_chunk=least)
        for request in prefills:
            wanted = grants.limit(request, min(request.pending, grants.left, self._max_chunk))
            if request in self._running and (num_tokens := room.limit(request.computed, wanted)) > 0:
                room.take(request.computed, num_tokens)
                self._grant(request, num_tokens, grants)
        return room

    def _grant(self, request: Request, num_tokens: int, grants: Grants) -> None:
        """Reserve blocks and grant, at the cost of drafts, then held blocks, then running requests (maybe itself)."""
        while not self.kv.reserve(request, request.computed + num_tokens):
            if request.draft:
                request.draft = ()
                num_tokens = min(num_tokens, request.pending)
            elif not self._forks.give_up_held():
                victim = choose_victim(self._running, self._policy, self.queue.shares)
                self._preempt(victim, grants)
                if victim is request:
                    return
        grants.give(request, num_tokens)

    def _admit(self, grants: Grants, room: PromptRoom, now: float) -> None:
        """Waiting requests in order until one does not fit.

        Passed over: children whose parent is not ready, and what wants prompt logits when the step has enough of them.
        """
        limit = min(self.settings.max_num_seqs, self._limit.limit)
        blocked = self._forks.waiting()
        # What running prompts still need: without it two long prompts would be admitted that then fight for blocks.
        lacking = [self.kv.blocks_for(len(r.tokens)) - len(r.blocks) for r in self._running] if len(self.queue) else []
        promised = sum(max(0, each) for each in lacking)
        admitted: list[Request] = []
        for request in self.queue:
            if len(self._running) >= limit or grants.left == 0:
                break
            if request in blocked or grants.limit(request, 1) == 0:
                continue
            num_tokens = self._try_start(request, grants, room, promised)
            while num_tokens == 0 and not self._running and self._forks.give_up_held():
                num_tokens = self._try_start(request, grants, room, promised)
            if num_tokens == 0:
                break
            promised += self.kv.blocks_for(len(request.tokens)) - len(request.blocks)
            room.take(request.computed, num_tokens)
            grants.give(request, num_tokens)
            admitted.append(request)
            self._start(request, now)
        for request in admitted:
            self.queue.remove(request)
        self.queue.rates.observe(now, len(admitted), sum(each.num_prompt_tokens for each in admitted), len(self.queue))

    def _try_start(self, request: Request, grants: Grants, room: PromptRoom, promised: int) -> int:
        """Reserve blocks for the first chunk; the number of its tokens, or 0 and nothing changed."""
        # Prompt log-probabilities need logits at every prompt position, and the cache keeps none.
        hit = None if request.blocks or request.lacks_prompt_logprobs else self.kv.match(request)
        start = hit.num_tokens if hit else request.computed
        num_tokens = grants.limit(request, len(request.tokens) - start)
        if self.settings.enable_chunked_prefill:
            num_tokens = room.limit(start, min(num_tokens, grants.left, self._max_chunk))
        elif num_tokens > self.settings.max_num_batched_tokens:  # grew beyond it before a preemption
            num_tokens = grants.left
        elif num_tokens > grants.left:
            num_tokens = 0
        if num_tokens == 0:
            return 0
        rest = self.kv.blocks_for(len(request.tokens)) - self.kv.blocks_for(start + num_tokens)
        keep_free = rest + (promised + self._watermark if self._running else 0)
        if not self.kv.reserve(request, start + num_tokens, hit, keep_free=keep_free):
            return 0
        request.computed = start
        return num_tokens

    def _start(self, request: Request, now: float) -> None:
        if request.stats.first_scheduled is None:
            request.stats.first_scheduled = now
            request.stats.cached_tokens = request.computed
            self.queue.shares.charge_prompt(request.tenant, request.num_prompt_tokens - request.computed)
            request.protected |= now - request.arrival > self.settings.max_wait
        request.status = RequestStatus.RUNNING
        self._running.add(request)
        self._forks.started(request)

    def _preempt(self, request: Request, grants: Grants) -> None:
        grants.withdraw(request)
        grants.preempted += 1
        self._preempted += 1
        self._running.discard(request)
        self.kv.release(request)
        request.computed = 0
        request.draft = ()
        if request.lacks_prompt_logprobs:
            request.prompt_logprobs.clear()  # collected again from the start: rows carry no offset into them
        request.stats.preemptions += 1
        request.stats.preempted_steps.append(self._step + 1)
        request.protected |= request.stats.preemptions >= self.settings.max_preemptions
        request.status = RequestStatus.PREEMPTED
        self.queue.push(request)

    # ---- a step ends ----

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestUpdate]:
        """Take over what the step computed. Rows of requests that ended meanwhile are ignored."""
        if self._in_flight is not plan or result.step != plan.step or len(result.rows) != len(plan.rows):
            raise EngineError(f"the result of step {result.step} does not answer the step in flight.")
        self._in_flight = None
        elapsed = result.timing.build + result.timing.forward + result.timing.sample
        elapsed = max(elapsed, now - self._planned_at)
        self._cost_model.observe(plan_work(plan), elapsed)
        self.proposer.observe_step(plan, elapsed)
        updates = self.drain()
        sampled: list[Request] = []
        shared = self.queue.shares.several
        for row, answer in zip(plan.rows, result.rows, strict=True):
            request = self._requests[row.request_id]
            if request.finished:
                self._forget(request)
                continue
            update = self._apply_row(request, row, answer, now)
            if update.tokens or update.finish_reason:
                updates.append(update)
            if shared:
                self.queue.shares.charge_output(request.tenant, len(update.tokens))
            if row.samples and not request.finished:
                sampled.append(request)
        self._sampled = sampled
        return updates

    @property
    def in_flight(self) -> StepPlan | None:
        """The step that was planned and neither applied nor discarded yet."""
        return self._in_flight

    def discard(self, plan: StepPlan) -> None:
        """The step in flight failed as a whole: nothing was computed, and its rows are planned again."""
        if self._in_flight is not plan:
            raise EngineError(f"step {plan.step} is not in flight.")
        self._in_flight = None
        for row in plan.rows:
            if self._requests[row.request_id].finished:
                self._forget(self._requests[row.request_id])

    def _apply_row(self, request: Request, row: PlanRow, answer: RowResult, now: float) -> RequestUpdate:
        if answer.error is not None:
            request.finish_reason, request.error, request.error_kind = "error", answer.error, answer.error_kind
            self._end(request, now)
            return RequestUpdate(request, finish_reason="error")
        check_answer(row, answer)
        request.prompt_logprobs.extend(answer.prompt_logprobs)
        request.draft = ()
        kept = 0
        for token in answer.tokens:
            kept += 1
            if request.append(token):
                break
        accepted = min(answer.accepted, kept)  # an end inside the accepted drafts cut some off
        request.stats.count_draft(row.num_draft, accepted)
        complete = answer.complete and kept == len(answer.tokens) and request.stop_token is None
        if complete:
            request.finish_reason = "stop"
        if kept and request.stats.first_token is None:
            request.stats.first_token = now
        logprobs = answer.logprobs[:kept]
        request.logprobs.extend(logprobs)
        computed = row.start + len(row.tokens) - row.num_draft + answer.accepted
        request.computed = min(computed, len(request.tokens))
        self.kv.commit(request)
        self._forks.parent_advanced(request)
        if request.finish_reason is not None:
            self._end(request, now)
        tokens = answer.tokens[:kept]
        return RequestUpdate(request, tokens, logprobs, request.finish_reason, complete, row.num_draft, accepted)

    def _end(self, request: Request, now: float, *, keep_blocks: bool = False) -> None:
        request.status = RequestStatus.FINISHED
        request.stats.finished = now
        request.draft = ()
        self.proposer.release(request)
        self._running.discard(request)
        self._deadlines.forget(request)
        self.queue.shares.leave(request.tenant)
        if request in self.queue:
            self.queue.remove(request)
        self._forks.ended(request)
        if not keep_blocks:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self.kv.release(request)
        self._forks.started(request)
        del self._requests[request.id]

    def _expire(self, now: float) -> None:
        self._end_late(self._deadlines.expired(now), now)
        hit_rate = self.kv.usage().hit_rate
        self._end_late(self._deadlines.hopeless(now, self._running, self.queue, hit_rate), now)

    def _end_late(self, requests: Iterable[Request], now: float) -> None:
        ended = [self.finish(request.id, "deadline", now) for request in requests]
        self._updates += [update for update in ended if update is not None]
