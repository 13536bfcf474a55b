"""One request from arrival to its last token: the only long-lived mutable type of the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from slipstream.engine.plan import RowSampling
from slipstream.errors import ContextLengthError, FailureKind, InvalidParamsError
from slipstream.kv.manager import BlockTable
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.processors import plain_draw
from slipstream.spec.proposer import TokenProbs

FinishReason = Literal["stop", "length", "abort", "error", "deadline"]
Drafter = Literal["ngram", "draft_model", "draft_head"]
SEED_RANGE = 2**64


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waits again; keeps its output and recomputes its KV
    FINISHED = "finished"


@dataclass(slots=True)
class RequestStats:
    """Times in seconds on the clock of the `now` that the scheduler is given; None until it happened."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0
    preempted_steps: list[int] = field(default_factory=list)  # numbers of the first steps without it
    cached_tokens: int = 0  # prompt tokens not computed for this request when it first ran
    num_drafts: int = 0  # steps in which a draft was verified
    draft_tokens: int = 0
    accepted_tokens: int = 0  # those that became output
    time_saved: float | None = None  # by drafts, its own and its neighbours'; None: step times are not known

    @property
    def queue_time(self) -> float | None:
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, queueing included."""
        return None if self.first_token is None else self.first_token - self.arrival

    def count_draft(self, num_tokens: int, num_accepted: int) -> None:
        self.num_drafts += num_tokens > 0
        self.draft_tokens += num_tokens
        self.accepted_tokens += num_accepted

    def tpot(self, num_output_tokens: int) -> float | None:
        """Mean time per output token after the first."""
        if self.first_token is None or self.finished is None or num_output_tokens < 2:
            return None
        return (self.finished - self.first_token) / (num_output_tokens - 1)


@dataclass(slots=True, eq=False)
class Request:
    """Make it with `make_request`, which checks and resolves what the parameters leave open.

    `tokens` are the known ones, prompt then output. `computed` of them have their KV written and verified; the
    scheduler's one rule is that `computed` chases tokens + draft.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int  # 0 .. 2**64 - 1
    max_tokens: int  # >= 1, the context's end respected
    stop_token_ids: tuple[int, ...]
    arrival: float  # seconds
    priority: int = 0  # lower is more important
    deadline: float | None = None  # absolute seconds
    cache_salt: str | None = None
    tenant: str | None = None
    fork_of: str | None = None  # id of the request whose prompt blocks this one shares
    max_draft: int | None = None  # tokens; 0: nothing is drafted for it; None: as the engine does it
    drafter: Drafter | None = None  # the one that it wants; None: whichever the engine chooses
    wants_states: bool = False  # a draft head may draft for it and reads the hidden states of its tokens
    judged: bool = False  # its drafts may be drawn at random and are then judged by rejection sampling

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the stop token that ended it
    error: str | None = None
    error_kind: FailureKind | None = None
    tokens: list[int] = field(init=False)
    computed: int = 0
    draft: tuple[int, ...] = ()
    draft_probs: tuple[TokenProbs, ...] | None = None  # of `draft`, while there is one
    table: BlockTable = field(default_factory=BlockTable)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of prompt tokens 1 .. end
    stats: RequestStats = field(init=False)
    order: int = -1  # position in the order in which the scheduler received its requests
    last_step: int = 0  # the step that last computed something for it
    protected: bool = False  # was preempted often or waited long: is preempted last from now on
    _sampling: RowSampling | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_token_ids)
        self.stats = RequestStats(self.arrival)

    @property
    def blocks(self) -> list[int]:
        return self.table.blocks

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[len(self.prompt_token_ids) :]

    @property
    def pending(self) -> int:
        """Tokens to feed until the next one can be sampled, drafts included."""
        return len(self.tokens) + len(self.draft) - self.computed

    @property
    def decoding(self) -> bool:
        """Only the newest known token is not computed yet."""
        return len(self.tokens) - self.computed == 1

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def max_computed(self) -> int:
        """The most tokens whose KV it can ever need: the last sampled one is never fed."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def lacks_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def needs_history(self) -> bool:
        """Whether sampling reads the tokens before."""
        p = self.params
        penalised = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
        return penalised or bool(p.bad_words_ids)

    def row_sampling(self, *, samples: bool) -> RowSampling:
        """What the runner needs to sample for it; `history` only where it is read (prompt log-probabilities too)."""
        if self._sampling is None:
            self._sampling = RowSampling(
                self.params,
                self.seed,
                self.num_prompt_tokens,
                self.stop_token_ids,
                max_tokens=self.max_tokens,
                plain=plain_draw(self.params, self.seed),
            )
        if self._sampling.plain is not None:
            return self._sampling
        if samples and self.params.grammar is not None:
            history = tuple(self.tokens) if self.lacks_prompt_logprobs or self.needs_history else ()
            return replace(self._sampling, history=history, output=tuple(self.output_token_ids))
        if self.lacks_prompt_logprobs or (samples and self.needs_history):
            return replace(self._sampling, history=tuple(self.tokens))
        return self._sampling

    def append(self, token: int) -> bool:
        """Add a sampled token; True if it ends the request, whose `finish_reason` is then set."""
        index = len(self.tokens) - len(self.prompt_token_ids)
        self.tokens.append(token)
        if token in self.stop_token_ids and index >= self.params.min_tokens:
            self.finish_reason, self.stop_token = "stop", token
        elif index + 1 >= self.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None


def make_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
    arrival: float,
    priority: int = 0,
    deadline: float | None = None,
    cache_salt: str | None = None,
    tenant: str | None = None,
    max_draft: int | None = None,
    drafter: Drafter | None = None,
    judged: bool = False,
    wants_states: bool = False,
) -> Request:
    """Check a prompt and resolve seed, stop tokens and length against the model.

    judged: whether drafts may be judged where it has a temperature and neither a seed nor a grammar.

    Without `max_tokens` the answer ends with reason "length" where the context ends. Raises InvalidParamsError (empty
    prompt, negative token id) and ContextLengthError (a prompt that fills the context, or max_tokens beyond its end).
    """
    prompt = tuple(prompt_token_ids)
    where = f"request {request_id}"
    if not prompt:
        raise InvalidParamsError("the prompt is empty.", where=where, fix="Give at least one token.")
    if min(prompt) < 0:
        raise InvalidParamsError(f"the prompt contains the token id {min(prompt)}.", where=where)
    if len(prompt) >= max_model_len:
        raise ContextLengthError(len(prompt), max_model_len, where=where)
    room = max_model_len - len(prompt)
    if params.max_tokens is not None and params.max_tokens > room:
        raise ContextLengthError(len(prompt), max_model_len, num_output_tokens=params.max_tokens, where=where)
    stop_token_ids = params.stop_token_ids if params.ignore_eos else (*eos_token_ids, *params.stop_token_ids)
    return Request(
        id=request_id,
        prompt_token_ids=prompt,
        params=params,
        seed=secrets.randbelow(SEED_RANGE) if params.seed is None else params.seed % SEED_RANGE,
        max_tokens=room if params.max_tokens is None else params.max_tokens,
        stop_token_ids=tuple(dict.fromkeys(stop_token_ids)),
        arrival=arrival,
        priority=priority,
        deadline=deadline,
        cache_salt=cache_salt,
        tenant=tenant,
        max_draft=max_draft,
        drafter=drafter,
        wants_states=wants_states,
        judged=judged and params.seed is None and params.grammar is None and not params.greedy,
    )


def make_children(parent: Request) -> list[Request]:
    """The other n - 1 requests of one with n > 1, in order.

    They differ by seed (the parent's plus 1, 2, ...), share the parent's prompt blocks once these are computed,
    and leave prompt log-probabilities, which would be the same, to the parent.
    """
    return [
        Request(
            id=f"{parent.id}/{i}",
            prompt_token_ids=parent.prompt_token_ids,
            params=replace(parent.params, n=1, prompt_logprobs=None),
            seed=(parent.seed + i) % SEED_RANGE,
            max_tokens=parent.max_tokens,
            stop_token_ids=parent.stop_token_ids,
            arrival=parent.arrival,
            priority=parent.priority,
            deadline=parent.deadline,
            cache_salt=parent.cache_salt,
            tenant=parent.tenant,
            fork_of=parent.id,
            max_draft=parent.max_draft,
            drafter=parent.drafter,
            wants_states=parent.wants_states,
            judged=parent.judged,
        )
        for i in range(1, parent.params.n)
    ]
