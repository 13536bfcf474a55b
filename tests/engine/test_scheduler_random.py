"""Random workloads against the plain sequential answer, with the block bookkeeping proved after every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from scheduling_fakes import VOCABULARY, FakeModel, logprob, next_token, sequential

from slipstream.engine.drafts import NoDrafts
from slipstream.engine.queue import FirstComeFirstServed, PriorityOrder
from slipstream.engine.request import Request, make_children, make_request
from slipstream.engine.scheduler import RequestUpdate, Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.kv.manager import KVManager
from slipstream.sampling.params import SamplingParams
from slipstream.spec.proposer import Draft

BLOCK_SIZE = 4


class Guesser(NoDrafts):
    """Drafts that are right with probability 0.7 per token."""

    def __init__(self, rng: random.Random, lengths: Sequence[int]) -> None:
        self.rng, self.lengths = rng, lengths

    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        return [Draft(tuple(self._draft(request))) for request in requests]

    def _draft(self, request: Request) -> list[int]:
        draft: list[int] = []
        for _ in range(self.rng.choice(self.lengths)):
            right = next_token((*request.tokens, *draft), request.seed)
            draft.append(right if self.rng.random() < 0.7 else self.rng.randrange(VOCABULARY))
        return draft


@dataclass
class Workload:
    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.chunked = rng.random() < 0.8
        self.budget = rng.choice([3, 7, 16, 64]) if self.chunked else rng.choice([27, 64])
        self.max_rows = rng.randint(1, 6)
        self.kv = KVManager(rng.randint(11, 40), BLOCK_SIZE, enable_prefix_caching=rng.random() < 0.7)
        self.scheduler = Scheduler(
            SchedulerSettings(
                max_num_batched_tokens=self.budget,
                max_num_seqs=self.max_rows,
                enable_chunked_prefill=self.chunked,
                max_prefill_chunk=rng.choice([None, None, 2, 5]),
                watermark=rng.choice([0.0, 0.05, 0.3]),
                tpot_objective=rng.choice([None, None, 1e-3]) if self.chunked else None,
                max_wait=rng.choice([5.0, 1e9]),
            ),
            self.kv,
            policy=rng.choice([FirstComeFirstServed(), PriorityOrder(3.0), PriorityOrder(None)]),
            proposer=Guesser(rng, rng.choice([[0], [0, 0, 2, 4]])),
        )
        self.model = FakeModel(BLOCK_SIZE, self.budget, self.max_rows)
        self.model.fail = lambda _: rng.random() < self.failure_rate
        self.failure_rate = rng.choice([0.0, 0.0, 0.02])
        self.abort_rate = rng.choice([0.0, 0.1])
        self.ended: dict[str, str] = {}
        self.streamed: dict[str, list[int]] = {}
        self.all: list[Request] = []
        self.discarded = 0

    def requests(self) -> list[list[Request]]:
        """Groups that are added together: a request and its children."""
        rng, groups = self.rng, []
        base = [rng.randrange(VOCABULARY) for _ in range(12)]
        for i in range(rng.randint(3, 14)):
            own = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 14))]
            stop = rng.sample(range(VOCABULARY), rng.choice([0, 0, 1]))
            params = SamplingParams(
                max_tokens=rng.randint(1, 12),
                min_tokens=0,
                n=rng.choice([1, 1, 1, 3]),
                seed=rng.randrange(3),
                stop_token_ids=tuple(stop),
                logprobs=rng.choice([None, 0]),
                prompt_logprobs=rng.choice([None, None, None, 0]),
                presence_penalty=rng.choice([0.0, 1.0]),
            )
            request = make_request(
                f"r{i}",
                base[: rng.randint(0, 12)] + own,
                params,
                max_model_len=44,
                arrival=float(i),
                priority=rng.randint(-1, 2),
                deadline=rng.choice([None, None, None, float(i + rng.randint(0, 60))]),
                cache_salt=rng.choice([None, None, "tenant"]),
            )
            groups.append([request, *make_children(request)])
        return groups

    def take(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            request = update.request
            assert request.id not in self.ended, "an update after the last"
            self.streamed.setdefault(request.id, []).extend(update.tokens)
            if update.finish_reason is not None:
                assert request.finished
                self.ended[request.id] = update.finish_reason

    def abort_sometimes(self, now: float) -> None:
        if self.rng.random() < self.abort_rate:
            request = self.rng.choice(self.all)
            reason = self.rng.choice(["abort", "stop"])
            alive = not request.finished
            update = self.scheduler.finish(request.id, reason, now)
            assert (update is not None) == alive
            if update is not None:
                self.take([update])

    def run(self) -> None:
        todo, now = self.requests(), 0.0
        while todo or self.scheduler.has_unfinished:
            now += 1.0
            assert now < 5000, "no end in sight"
            while todo and self.rng.random() < 0.6:
                group = todo.pop(0)
                self.all.extend(group)
                for request in group:
                    self.scheduler.add(request)
            if not self.all:
                continue
            self.abort_sometimes(now)
            plan = self.scheduler.plan(now)
            if plan is None:
                self.take(self.scheduler.drain())
                continue
            result = self.model.run(plan)
            self.abort_sometimes(now)
            if self.rng.random() < 0.02:
                self.scheduler.discard(plan)
                self.discarded += 1
            else:
                self.take(self.scheduler.apply(plan, result, now))
            self.kv.check(self.scheduler.requests)
            if self.rng.random() < 0.01:
                self.kv.reset_prefix_cache()
        self.take(self.scheduler.drain())

    def verify(self) -> None:
        assert self.ended.keys() == {request.id for request in self.all}
        usage = self.kv.usage()
        assert (usage.used, usage.free + usage.cached) == (0, self.kv.num_blocks)
        assert self.kv.enable_prefix_caching or usage.cached == usage.hit_tokens == 0
        for request in self.all:
            self._verify(request)

    def _verify(self, request: Request) -> None:
        prompt, params, output = list(request.prompt_token_ids), request.params, request.output_token_ids
        right = sequential(prompt, request.max_tokens, request.seed, request.stop_token_ids)
        assert output == self.streamed.get(request.id, [])
        assert output == right[: len(output)]
        reason = self.ended[request.id]
        assert reason == request.finish_reason
        complete = output == right
        if complete and request.stop_token is not None:
            assert (reason, request.stop_token) == ("stop", output[-1])
        elif reason == "length":
            assert complete
        if not complete:
            assert reason in ("abort", "stop", "deadline", "error")
        if params.logprobs is not None:
            assert request.logprobs == [logprob(prompt + output[:i], t) for i, t in enumerate(output)]
        if params.prompt_logprobs is not None and output:
            assert request.prompt_logprobs == [logprob(prompt[:i], prompt[i]) for i in range(1, len(prompt))]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_workloads_equal_the_sequential_answer(first: int) -> None:
    seen = {"preemptions": 0, "hits": 0, "shared": 0, "accepted": 0, "discarded": 0, "evictions": 0}
    reasons: set[str] = set()
    for seed in range(first, first + 100):
        workload = Workload(seed)
        workload.run()
        workload.verify()
        stats, usage = workload.scheduler.stats(), workload.kv.usage()
        seen["preemptions"] += stats.num_preempted
        seen["hits"] += usage.hit_tokens
        seen["shared"] += usage.shared_tokens
        seen["evictions"] += usage.evictions
        seen["accepted"] += sum(request.stats.accepted_tokens for request in workload.all)
        seen["discarded"] += workload.discarded
        reasons |= set(workload.ended.values())
    assert min(seen.values()) > 0, f"the workloads no longer reach everything: {seen}"
    assert reasons == {"stop", "length", "abort", "error", "deadline"}
