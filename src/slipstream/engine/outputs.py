"""What a caller gets: streamed deltas, and the whole result. Names follow vLLM where the meaning is the same."""

from __future__ import annotations

from dataclasses import field

from slipstream.engine.request import FinishReason
from slipstream.errors import FailureKind
from slipstream.lean import dataclass
from slipstream.sampling.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class CompletionStats:
    """Times in seconds. `tpot` is the mean time per output token after the first (None below two tokens)."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int  # prompt tokens whose KV came from the prefix cache or a parent
    num_preemptions: int
    queue_time: float | None  # arrival to first scheduled
    ttft: float | None  # arrival to first token
    tpot: float | None
    e2e: float | None  # arrival to finish
    num_drafts: int = 0  # drafts that were verified
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # drafted tokens that became output
    time_saved: float | None = None  # by drafts, estimated; below 0: lost; None: unknown, or none was verified

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that became output; None if none were verified."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verified draft, the one that is sampled behind it included."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one completion of one request gained in a step. `text` may be empty while a character or a possible
    stop string is incomplete; concatenated deltas are the whole text."""

    request_id: str
    index: int  # which of the request's n completions
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # with the first delta; None at position 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string, or the stop token id if it is not end-of-sequence
    error: str | None = None
    stats: CompletionStats | None = None  # with the last delta
    num_accepted: int = 0  # of `token_ids`, so many were drafted: the first ones
    accepted_characters: int = 0  # of `text`, so many came with them
    error_kind: FailureKind | None = None  # "grammar": the request's own could not be followed any further


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: CompletionStats | None = None
    error_kind: FailureKind | None = None  # "grammar": the request's own could not be followed any further


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)

    def add(self, delta: OutputDelta) -> None:
        """Append one streamed delta."""
        output = self.outputs[delta.index]
        output.text += delta.text
        output.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            output.logprobs = output.logprobs or []
            output.logprobs.extend(delta.logprobs)
            total = output.cumulative_logprob or 0.0
            output.cumulative_logprob = sum((entry.logprob for entry in delta.logprobs), total)
        if delta.prompt_logprobs:
            self.prompt_logprobs = list(delta.prompt_logprobs)
        if delta.finish_reason is not None:
            output.finish_reason = delta.finish_reason
            output.stop_reason = delta.stop_reason
            output.error, output.error_kind = delta.error, delta.error_kind
            output.stats = delta.stats

    @classmethod
    def empty(cls, request_id: str, prompt: str | None, prompt_token_ids: tuple[int, ...], n: int = 1) -> RequestOutput:
        return cls(request_id, prompt, prompt_token_ids, [CompletionOutput(index) for index in range(n)])
