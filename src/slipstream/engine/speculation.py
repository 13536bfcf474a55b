"""Drafts for the scheduler: what the grammar forces, else what a proposer finds, else what a smaller model says where
that is worth its time, cut to what is worth verifying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.engine.asked_model import AskedModel, SteppingDrafter, Wanted
from slipstream.engine.plan import StepPlan
from slipstream.engine.recent_answers import NO_STORE, RecentAnswers, StoreStats
from slipstream.engine.request import Request
from slipstream.engine.savings import Savings
from slipstream.errors import RequestError
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.answers import is_shared
from slipstream.spec.controller import Controller
from slipstream.spec.proposer import NOTHING, Draft, Proposer

FORCED = -1  # the evidence of what a grammar leaves no choice about; proposers' own are not negative
FORCED_CHANCE = 0.95  # of its first token, before any has been seen
PATIENCE, REST = 32, 3  # looks that brought nothing right, and steps then passed over after each look
WAKING = 4  # looks that a drafted token makes up for if it is right: a probe now and then does not keep a request awake
TIMED = 8  # of steps without drafts every so many-th corrects the step times


@dataclass(slots=True)
class _Sequence:
    """What of a request has been taken notice of."""

    num_tokens: int
    drafted: int = 0
    accepted: int = 0
    saved: float = 0.0  # seconds
    idle: int = 0  # looks less what right tokens made up for
    rest: int = 0  # steps to be passed over
    shared: bool = False  # its last draft came from a recent answer


class SpeculativeDrafts:
    """Implements `DraftProposer`.

    All that is kept of a request is its own and goes with it, but for its answer where `answers` keeps it; the
    acceptance of drafts and the times of steps are learned across requests, and they decide about lengths, never about
    tokens. `grammars`: those of the sampler; None: what a grammar forces is not drafted. proposer: a lookup, asked
    first, and with it `answers`; model: a smaller model or a head, asked for the requests for which they find nothing,
    or less than it promises. Any may be missing, but there are no answers without a proposer.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        controller: Controller,
        grammars: GrammarStates | None = None,
        model: SteppingDrafter | None = None,
        answers: RecentAnswers | None = None,
    ) -> None:
        self._proposer = proposer
        self._answers = answers
        self._model = None if model is None else AskedModel(model, controller)
        self._controller = controller
        self._grammars = grammars
        self._sequences: dict[str, _Sequence] = {}
        self._savings = Savings(timed=controller.timed)
        self._plain: float | None = None  # seconds that the last step with drafts would have taken without
        self._may_rest = model is None and controller.options.policy != "fixed"
        self._offered = False  # something, for the next step

    @property
    def warning(self) -> str:
        return self._savings.warning

    @property
    def store(self) -> StoreStats:
        return NO_STORE if self._answers is None else self._answers.stats

    @property
    def max_tokens(self) -> int:
        return self._controller.options.num_tokens

    @property
    def names(self) -> tuple[str, ...]:
        found = () if self._proposer is None else (self._proposer.name,)
        return found if self._model is None else (*found, self._model.model.name)

    def propose(self, requests: Sequence[Request]) -> Sequence[Draft]:
        drafts, asked = self._found(requests)
        result = [NOTHING] * len(requests)
        self._offered = bool(drafts)
        if not drafts:
            self._savings.asked(asked, 0, 0)
            return result
        offers = [(requests[index].id, draft) for index, draft in drafts]
        context = sum([len(request.tokens) for request in requests]) // len(requests)
        lengths = self._controller.offer(offers, len(requests) - len(drafts), context)
        for (index, draft), length in zip(drafts, lengths, strict=True):
            if length:
                request = requests[index]
                draft = draft.cut(length)
                judged = draft.probs is None or request.judged
                result[index] = draft if judged else replace(draft, probs=None)
                if self._answers is not None:
                    self._sequences[request.id].shared = is_shared(draft.evidence)
        dear = self._controller.could_pay(len(requests), context) == 0
        self._savings.asked(asked, len(drafts), len(drafts) if dear else 0)
        return result

    def warm_up(self, requests: Sequence[Request]) -> None:
        if self._model is not None:
            self._model.model.warm_up([(request, self.max_tokens) for request in requests])

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """Of steps with a prefill the times say nothing: their tokens cost less than those of many short rows."""
        self._savings.seconds += len(plan.rows) * seconds
        if not self._offered and plan.step % TIMED:
            return
        rows = drafted = context = 0
        decoding = True
        for row in plan.rows:
            if row.samples:
                rows += 1
                drafted += row.num_draft
                context += row.start
            decoding = decoding and row.samples and len(row.tokens) == 1 + row.num_draft
        if not rows:
            return
        context //= rows
        if decoding:
            self._controller.observe_step(rows, rows + drafted, seconds, context)
        drafting = 0.0 if self._model is None else self._model.taken()
        if drafted or drafting:
            self._charge(plan, rows, drafted, context, drafting)

    def release(self, request: Request) -> None:
        if self._model is not None:
            self._model.model.close(request.id)
        sequence = self._sequences.pop(request.id, None)
        if sequence is None:
            return
        self._count(request, sequence)
        if sequence.saved:
            request.stats.time_saved = sequence.saved
        if self._proposer is not None:
            self._proposer.close(request.id)
        if self._answers is not None:
            self._answers.keep(request)
        self._controller.forget(request.id)

    def _charge(self, plan: StepPlan, rows: int, drafted: int, context: int, drafting: float) -> None:
        """What drafts cost all rows of their step, had they been wrong; `_count` adds what the right ones saved.

        drafting: seconds that a model drafted before the step.
        """
        seconds = self._controller.seconds(rows, drafted, context)
        if seconds is not None:
            self._plain, verifying = seconds
            cost = verifying - self._plain + drafting
            for row in plan.rows:
                sequence = self._sequences.get(row.request_id)
                if sequence is not None and row.samples:
                    sequence.saved -= cost
                    self._savings.saved -= cost

    def _count(self, request: Request, sequence: _Sequence) -> tuple[int, int]:
        """(tokens verified, accepted) since the last call."""
        stats = request.stats
        verified, accepted = stats.draft_tokens - sequence.drafted, stats.accepted_tokens - sequence.accepted
        if verified:
            sequence.drafted, sequence.accepted = stats.draft_tokens, stats.accepted_tokens
            self._savings.verified(verified, accepted)
            if sequence.shared and self._answers is not None:
                self._answers.verified(verified, accepted)
            if self._plain is not None:
                sequence.saved += accepted * self._plain
                self._savings.saved += accepted * self._plain
        return verified, accepted

    def _found(self, requests: Sequence[Request]) -> tuple[list[tuple[int, Draft]], int]:
        """(what could be verified, by index of the request, and nothing for those for which nothing was found; the
        number of those that were looked at)."""
        drafts: dict[int, Draft] = {}
        asked = 0
        wanted: Wanted = []
        for index, request in enumerate(requests):
            if request.max_draft == 0:
                continue
            limit = self._look(request)
            if limit > 0:
                asked += 1
                if request.params.grammar is not None:
                    forced = self._forced(request, limit)
                    if forced.tokens:
                        drafts[index] = forced
                        continue
                wanted.append((index, limit))
        if self._proposer is not None and wanted:
            wanted = self._look_up(self._proposer, requests, wanted, drafts)
        if self._model is not None and wanted:
            drafts.update(self._model.ask(requests, wanted))
        return list(drafts.items()), asked

    def _look_up(
        self, proposer: Proposer, requests: Sequence[Request], wanted: Wanted, drafts: dict[int, Draft]
    ) -> Wanted:
        """Adds what is found to `drafts`; those of `wanted` for which the model is to be asked."""
        asked = [(index, limit) for index, limit in wanted if requests[index].drafter in (None, "ngram")]
        found = proposer.propose([(requests[index].id, limit) for index, limit in asked])
        if self._answers is not None:
            better = self._answers.better
            found = [better(requests[i], limit, own) for (i, limit), own in zip(asked, found, strict=True)]
        served = set()
        for (index, limit), draft in zip(asked, found, strict=True):
            if draft.tokens:
                drafts[index] = draft
                if self._model is None or not self._model.prefers(requests, index, limit, draft):
                    served.add(index)
        return [each for each in wanted if each[0] not in served] if served else wanted

    def _look(self, request: Request) -> int:
        """Take notice of the request's new tokens and of what came of its last draft; how many tokens may be drafted.

        A request for which next to nothing right has been found for long is passed over in most steps.
        """
        tokens = request.tokens
        sequence = self._sequences.get(request.id)
        if sequence is None:
            if self._proposer is not None:
                self._proposer.open(request.id, tokens)
            sequence = self._sequences[request.id] = _Sequence(len(tokens))
        else:
            if sequence.rest:
                sequence.rest -= 1
                return 0
            if self._proposer is not None:
                self._proposer.extend(request.id, tokens[sequence.num_tokens :])
            sequence.num_tokens = len(tokens)
            if request.stats.draft_tokens != sequence.drafted:
                verified, accepted = self._count(request, sequence)
                self._controller.observe(request.id, verified, accepted)
                sequence.idle = max(0, sequence.idle - WAKING * accepted)
        sequence.idle = min(sequence.idle, PATIENCE) + 1
        if sequence.idle > PATIENCE and self._may_rest and request.params.grammar is None:
            sequence.rest = REST
        room = request.max_tokens - len(tokens) + len(request.prompt_token_ids) - 1  # one more is sampled behind it
        most = self._controller.options.num_tokens
        return min(room, most) if request.max_draft is None else min(room, most, request.max_draft)

    def _forced(self, request: Request, limit: int) -> Draft:
        spec = request.params.grammar
        if spec is None or self._grammars is None:
            return NOTHING
        try:
            state = self._grammars.at(request.id, spec, request.output_token_ids)
        except RequestError:
            return NOTHING  # the sampler meets the same error and ends the request with it
        return Draft(tuple(state.forced_tokens()[:limit]), FORCED) if not state.finished else NOTHING
