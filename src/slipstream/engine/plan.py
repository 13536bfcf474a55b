"""What the scheduler asks for in one step and what the runner answers. Frozen, no tensors, serialisable."""

from __future__ import annotations

from slipstream.errors import FailureKind
from slipstream.lean import dataclass
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.sampling.params import SamplingParams
from slipstream.spec.proposer import TokenProbs

PlainDraw = tuple[float, int, float, float, int]  # temperature, top_k, top_p, min_p, seed


@dataclass(frozen=True, slots=True)
class RowSampling:
    """All that sampling needs to know about a row, so that the runner keeps no request state."""

    params: SamplingParams
    seed: int  # 0 .. 2**64 - 1; given or drawn at admission
    num_prompt_tokens: int
    stop_token_ids: tuple[int, ...]  # end-of-sequence ids and the request's own; banned while min_tokens is not met
    history: tuple[int, ...] = ()  # every known token, drafts excluded; empty unless params need it
    output: tuple[int, ...] = ()  # the known output tokens; empty without a grammar
    max_tokens: int | None = None  # of the output, the context's end respected
    plain: PlainDraw | None = None  # if nothing but this is between logits and token, in every step


@dataclass(frozen=True, slots=True)
class PlanRow:
    """`tokens` are fed at positions start, start + 1, ...; the last `num_draft` of them are drafts.

    `num_logits` counts the trailing positions whose logits are wanted: 0 for a chunk that is not the last,
    1 + num_draft to sample, len(tokens) (or the part of it inside the prompt) for prompt log-probabilities.
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    num_draft: int
    num_logits: int
    samples: bool  # the last 1 + num_draft logits positions produce tokens
    sampling: RowSampling
    draft_probs: tuple[TokenProbs, ...] | None = None  # what each draft was drawn from; None: they are compared
    wants_states: bool = False  # the hidden states of its tokens are to be kept for a draft head


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    rows: tuple[PlanRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum([len(row.tokens) for row in self.rows])


@dataclass(frozen=True, slots=True)
class RowResult:
    """`tokens`: accepted drafts and then one sampled token (empty if the row did not sample)."""

    request_id: str
    tokens: tuple[int, ...]
    accepted: int
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # for prompt positions start+1.., if asked
    error: str | None = None  # this request failed in the runner; the others did not
    complete: bool = False  # the grammar allows nothing after the last token
    error_kind: FailureKind | None = None


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds."""

    build: float = 0.0
    forward: float = 0.0
    sample: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    rows: tuple[RowResult, ...]
    timing: StepTiming = StepTiming()
