"""The engine without threads or processes: requests in, one step at a time, streamed deltas out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from slipstream.engine.asked_drafts import asked_drafter, asked_length
from slipstream.engine.completion import Completion, TextAssembler
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.plan import StepPlan
from slipstream.engine.protocol import EngineStats, GenerationRequest
from slipstream.engine.recorder import TimelineRecorder
from slipstream.engine.request import SEED_RANGE, Request, make_children, make_request
from slipstream.engine.runner import Runner
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.timeline import RequestTimeline
from slipstream.engine.totals import Totals
from slipstream.engine.updates import RequestUpdate
from slipstream.errors import EngineError, InvalidParamsError
from slipstream.sampling.grammar.compiler import CompiledGrammar, GrammarCompiler
from slipstream.sampling.params import SamplingParams
from slipstream.text.tokenizer import Tokenizer


class _Recording:
    """What happens inside happens as a whole, or the engine is broken."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        self.broken = False

    def __enter__(self) -> None:
        self.broken = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.broken = error is not None


class EngineCore:
    """Owns a scheduler and a runner; everything that happens to a request happens in `add`, `abort` or `step`.

    Not thread-safe: one caller at a time. `tokenizer` may be None: then there is no text, and stop strings are
    refused. `clock` gives seconds and never goes back. `seed`: where requests without a seed draw theirs from, in the
    order of `add`; None: from the system. `recorder` keeps timelines; None: nobody does.
    `grammars`: the compiler that the runner's grammar states use, too; None: grammars are refused. `judge_drafts`:
    by rejection sampling, of requests whose tokens no seed determines.

    A KeyboardInterrupt while the runner works takes the step back, and the engine can go on. An exception that strikes
    while results are being recorded leaves them half recorded: every later `add` and `step` then raises EngineError.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] = (),
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        recorder: TimelineRecorder | None = None,
        grammars: GrammarCompiler | None = None,
        judge_drafts: bool = False,
    ) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._clock = clock
        self._recorder = recorder
        self._grammars = grammars
        self._judge_drafts = judge_drafts
        self._seeds = None if seed is None else random.Random(seed)
        self._completions: dict[str, Completion] = {}  # unfinished, by scheduler request id
        self._pinned: dict[str, CompiledGrammar] = {}  # of open requests: nothing is compiled again within a step
        self._children: dict[str, list[str]] = {}  # caller's request id -> scheduler request ids, unfinished
        self._totals = Totals()
        self._recording = _Recording()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_unfinished

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    @property
    def open_request_ids(self) -> Collection[str]:
        """Requests with an unfinished completion; a view."""
        return self._children.keys()

    def prompt_progress(self, request_id: str) -> tuple[int, int] | None:
        """(prompt tokens computed or found in the cache, prompt tokens) of the request's first unfinished completion;
        None once its first token is there, and if there is no such request."""
        names = self._children.get(request_id)
        request = None if not names else self._completions[names[0]].request
        if request is None or request.num_output_tokens:
            return None
        return request.computed, request.num_prompt_tokens

    def check(self, request: GenerationRequest) -> None:
        """Raise the error that `add` would raise for the request's own content, and change nothing."""
        self._requests(request, self._clock())

    def prepare(self, params: SamplingParams) -> None:
        """Compile the grammar, if there is one, so that `check` and `add` are quick. May be called from any thread.

        Raises InvalidParamsError for what is no grammar.
        """
        self._compile(params, "grammar")

    def hold_place(self, request: GenerationRequest) -> None:
        """Count the request towards the queue's bounds while it is prepared, until `add` or `release_place`.

        May be called from any thread. Raises QueueFullError, or InvalidParamsError for an id that holds a place.
        """
        self._scheduler.queue.hold_place(request.request_id, request.params.n, len(request.prompt_token_ids))

    def release_place(self, request_id: str) -> None:
        """The request will not be added after all. It may hold no place. May be called from any thread."""
        self._scheduler.queue.places.release(request_id)

    def now(self) -> float:
        """The engine's clock, from any thread."""
        return self._clock()

    def add(self, request: GenerationRequest, *, arrival: float | None = None) -> None:
        """Queue a request and, for n > 1, its siblings; all of them or none.

        `arrival`: when it came, on the engine's clock, if that was before this call: a step may have been under way.
        Waiting times and the deadline count from there.

        Raises InvalidParamsError, ContextLengthError, RequestTooLargeError, QueueFullError or DeadlineError.
        """
        try:
            self._add(request, arrival)
        finally:
            self.release_place(request.request_id)

    def _add(self, request: GenerationRequest, arrival: float | None) -> None:
        self._resume()
        now = self._clock()
        arrival = now if arrival is None else min(arrival, now)
        requests = self._requests(request, arrival)
        if request.request_id in self._children or any(each.id in self._completions for each in requests):
            raise InvalidParamsError("a request with this id is running.", where=f"request {request.request_id}")
        self._scheduler.require_room(requests[0], len(requests), now)
        if self._seeds is not None and request.params.seed is None:
            base = self._seeds.getrandbits(64)  # only now: a request that is refused and comes again draws once
            for index, each in enumerate(requests):
                each.seed = (base + index) % SEED_RANGE
        completions = [
            Completion(
                each,
                request.request_id,
                index,
                TextAssembler(self._tokenizer, each.params, each.prompt_token_ids),
                self._eos_token_ids,
            )
            for index, each in enumerate(requests)
        ]
        grammar = self._compile(request.params, request.request_id)
        with self._recording:
            if grammar is not None:
                self._pinned[request.request_id] = grammar
            self._children[request.request_id] = [each.id for each in requests]
            for each, completion in zip(requests, completions, strict=True):
                self._completions[each.id] = completion
                self._scheduler.add(each)
            if self._recorder is not None:
                self._recorder.added(request, requests, waited=now - arrival)
            self._totals.prompt_tokens += sum(each.num_prompt_tokens for each in requests)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End every unfinished completion of the request; [] if there is none, or if the engine is broken."""
        if self._recording.broken:
            return []
        self._resume()
        names = list(self._children.get(request_id, ()))
        with self._recording:
            return self._deltas(self._scheduler.abort(name, self._clock()) for name in names)

    def step(self) -> list[OutputDelta]:
        """Plan, run and apply one step. [] when there is nothing to do.

        If the runner raises, the requests of the step fail with its message and the others go on.
        """
        self._resume()
        scheduler, totals = self._scheduler, self._totals
        started = self._clock()
        scheduler.draft()  # outside of what must not be interrupted: a draft model takes its time
        begun = self._clock()
        with self._recording:
            plan = scheduler.plan(begun, begun - started)
            if plan is None:
                return self._deltas(scheduler.drain())
        try:
            result = self._runner.execute(plan)
        except Exception as error:  # noqa: BLE001  a runner may fail in any way; every caller of the step is told
            with self._recording:
                return self._fail(plan, error)
        with self._recording:
            now = self._clock()
            if self._recorder is not None:
                self._recorder.stepped(plan, started, now - started)
            deltas = self._deltas(scheduler.apply(plan, result, now))
            totals.steps += 1
            totals.step_time += self._clock() - started
            totals.forward_time += result.timing.forward
        return deltas

    def stats(self) -> EngineStats:
        scheduler, totals, store = self._scheduler.stats(), self._totals, self._scheduler.proposer.store
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_steps=totals.steps,
            num_preemptions=scheduler.num_preempted,
            num_prompt_tokens=totals.prompt_tokens,
            num_output_tokens=totals.output_tokens,
            num_cached_tokens=totals.cached_tokens,
            num_finished=totals.finished,
            kv_blocks_total=scheduler.kv.total,
            kv_blocks_used=scheduler.kv.used,
            kv_blocks_cached=scheduler.kv.cached,
            prefix_cache_queries=scheduler.kv.queried_tokens,
            prefix_cache_hits=scheduler.kv.hit_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            step_time=totals.step_time,
            forward_time=totals.forward_time,
            num_queued_tokens=scheduler.num_queued_tokens,
            num_shed=scheduler.num_shed,
            warm_up_time=totals.warm_up_time,
            num_drafts=totals.drafts,
            num_draft_tokens=totals.draft_tokens,
            num_accepted_tokens=sum(totals.accepted),
            accepted_per_position=tuple(totals.accepted),
            time_saved=totals.time_saved,
            speculation_warning=self._scheduler.proposer.warning,
            num_store_tokens=store.num_tokens,
            num_store_draft_tokens=store.num_draft_tokens,
            num_store_accepted_tokens=store.num_accepted_tokens,
        )

    def warm_up_drafter(self, requests: Sequence[GenerationRequest]) -> None:
        """Let a draft model or head, if there is one, draft for them once, in one batch; they are not added."""
        now, most = self._clock(), self._scheduler.settings.max_num_seqs
        self._scheduler.proposer.warm_up([self._requests(each, now)[0] for each in requests[:most]])

    def warm_up_grammars(self) -> None:
        """Prepare the vocabulary for grammars, if the engine takes any, as the first of them would."""
        if self._grammars is not None:
            self._grammars.warm_up()

    def begin(self, *, warm_up_time: float) -> None:
        """Count anew from here: what ran before was no request of anybody. Seconds."""
        self._totals = Totals(warm_up_time=warm_up_time)

    def timeline(self, request_id: str) -> RequestTimeline | None:
        """Of a finished request; None if timelines are off, or it is unknown or forgotten."""
        return None if self._recorder is None else self._recorder.timeline(request_id)

    def check_integrity(self) -> None:
        """Prove that every KV block is free, cached or owned exactly as counted."""
        self._scheduler.kv.check(self._scheduler.requests)

    def _resume(self) -> None:
        """Take back a step that was interrupted: nothing of it has been recorded, so its rows are planned again."""
        if self._recording.broken:
            raise EngineError("an exception struck while results were being recorded; the engine cannot go on.")
        if self._scheduler.in_flight is not None:
            self._scheduler.discard(self._scheduler.in_flight)

    def _requests(self, request: GenerationRequest, now: float) -> list[Request]:
        where = f"request {request.request_id}"
        ids: object = request.prompt_token_ids
        if isinstance(ids, str):
            raise InvalidParamsError("prompt_token_ids holds text.", where=where, fix="Encode it with the tokenizer.")
        largest = max(request.prompt_token_ids, default=0)
        if largest >= self.vocab_size:
            raise InvalidParamsError(
                f"the prompt contains the token id {largest}, but the vocabulary has {self.vocab_size}.", where=where
            )
        if request.timeout is not None and not request.timeout > 0:
            raise InvalidParamsError(f"timeout must be above 0 seconds, got {request.timeout!r}.", where=where)
        params = self._resolve(request.params, where)
        proposer = self._scheduler.proposer
        max_draft = asked_length(request.speculative, proposer.names, proposer.max_tokens, where)
        drafter = asked_drafter(request.speculative)
        parent = make_request(
            request.request_id,
            request.prompt_token_ids,
            params,
            max_model_len=self.max_model_len,
            eos_token_ids=self._eos_token_ids,
            arrival=now,
            priority=request.priority,
            deadline=None if request.timeout is None else now + request.timeout,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            max_draft=max_draft,
            drafter=drafter,
            wants_states="draft_head" in proposer.names and max_draft != 0 and drafter in (None, "draft_head"),
            judged=self._judge_drafts and self._seeds is None,
        )
        self._scheduler.check(parent, request.params.n)
        return [parent, *make_children(parent)]

    def _resolve(self, params: SamplingParams, where: str) -> SamplingParams:
        """Check ids against the vocabulary; tokenise bad words, as written and behind a space."""
        params.validate_for_vocab(self.vocab_size)
        self._compile(params, where)
        if self._tokenizer is None:
            if params.stop or params.bad_words:
                name = "stop" if params.stop else "bad_words"
                raise InvalidParamsError(f"{name} needs a tokenizer, and this engine has none.", where=where)
            return params
        if not params.bad_words:
            return params
        sequences = (
            tuple(self._tokenizer.encode(spelling, add_special_tokens=False))
            for word in params.bad_words
            # White space alone has no other spelling: a line break must not ban the space.
            for spelling in ((word.lstrip(), " " + word.lstrip()) if word.strip() else (word,))
        )
        return replace(params, bad_words_ids=(*params.bad_words_ids, *dict.fromkeys(sequences)))

    def _compile(self, params: SamplingParams, where: str) -> CompiledGrammar | None:
        if params.grammar is None:
            return None
        if self._grammars is None:
            raise InvalidParamsError("grammar needs a tokenizer, and this engine has none.", where=where)
        return self._grammars.compile(params.grammar)

    def _fail(self, plan: StepPlan, error: Exception) -> list[OutputDelta]:
        self._scheduler.discard(plan)
        updates = []
        for row in plan.rows:
            update = self._scheduler.finish(row.request_id, "error", self._clock())
            if update is not None:
                update.request.error = f"the step failed: {type(error).__name__}: {error}"
                updates.append(update)
        return self._deltas(updates)

    def _deltas(self, updates: Iterable[RequestUpdate | None]) -> list[OutputDelta]:
        deltas = []
        for update in updates:
            completion = None if update is None else self._completions.get(update.request.id)
            if completion is None or update is None:
                continue
            if update.num_draft:
                self._totals.count_draft(update)
            delta, over = completion.advance(update)
            if over:
                # Only a stop string, which the scheduler knows nothing of, ends what it would go on with.
                self._scheduler.finish(update.request.id, "stop", self._clock())
                delta = completion.last(delta)
                self._close(completion)
            self._totals.output_tokens += len(delta.token_ids)
            deltas.append(delta)
        return deltas

    def _close(self, completion: Completion) -> None:
        self._totals.finished += 1
        self._totals.cached_tokens += completion.request.stats.cached_tokens
        self._totals.time_saved += completion.request.stats.time_saved or 0.0
        if self._recorder is not None:
            self._recorder.ended(completion.request, completion.parent_id, completion.num_tokens)
        del self._completions[completion.request.id]
        siblings = self._children[completion.parent_id]
        siblings.remove(completion.request.id)
        if not siblings:
            del self._children[completion.parent_id]
            self._pinned.pop(completion.parent_id, None)
