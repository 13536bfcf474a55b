"""One completion of one request: its tokens become text, and both become deltas."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.request import Request
from slipstream.engine.updates import RequestUpdate
from slipstream.lean import dataclass
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.sampling.params import SamplingParams
from slipstream.text.detokenize import IncrementalDetokenizer
from slipstream.text.stop import StopChecker
from slipstream.text.tokenizer import Tokenizer


class TextAssembler:
    """Feeds tokens, gives text that can be shown now.

    With a stop string in play, text that could be its beginning is held back. After a match `stopped_by` names
    the string and everything behind it is dropped. The text of the first min_tokens tokens is not searched. Without a
    tokenizer there is no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self.stopped_by: str | None = None
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None:
            self._detokenizer = IncrementalDetokenizer(
                tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens
            )
        self._stop: StopChecker | None = None
        if params.stop:
            self._stop = StopChecker(params.stop, include_in_output=params.include_stop_str_in_output)
        self._unsearched = params.min_tokens  # tokens to come

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """(text to show, tokens used): tokens behind the one that completed a stop string are not used."""
        if self._detokenizer is None:
            return "", len(token_ids)
        if len(token_ids) == 1 and self._stop is None:
            self._unsearched = max(0, self._unsearched - 1)
            return self._detokenizer.push(token_ids[0]), 1
        shown = ""
        for used, token in enumerate(token_ids, 1):
            text = self._detokenizer.push(token)
            if self._unsearched:
                self._unsearched -= 1
                shown += text
                continue
            shown += self._check(text)
            if self.stopped_by is not None:
                return shown, used
        return shown, len(token_ids)

    def flush(self) -> str:
        """The rest, once no token follows. May still complete a stop string."""
        if self._detokenizer is None or self.stopped_by is not None:
            return ""
        shown = self._detokenizer.flush()
        if not self._unsearched:
            shown = self._check(shown)
        if self._stop is not None and self.stopped_by is None:
            shown += self._stop.flush().text
        return shown

    def _check(self, text: str) -> str:
        if self._stop is None:
            return text
        result = self._stop.push(text)
        self.stopped_by = result.matched
        return result.text


@dataclass(slots=True)
class Completion:
    """`advance` with every update of the request; when it says that the completion is over, `last` ends it."""

    request: Request
    parent_id: str  # the caller's request id
    index: int
    text: TextAssembler
    eos_token_ids: tuple[int, ...]
    num_tokens: int = 0  # given to the caller
    prompt_logprobs_given: bool = False

    def advance(self, update: RequestUpdate) -> tuple[OutputDelta, bool]:
        """(delta without the final fields, whether the completion is over)."""
        tokens = update.tokens
        if len(tokens) == 1 and update.finish_reason is None and not update.num_draft:
            text, _ = self.text.push(tokens)
            self.num_tokens += 1
            prompt = self._prompt_logprobs()
            delta = OutputDelta(self.parent_id, self.index, text, tokens, update.logprobs, prompt)
            return delta, self.text.stopped_by is not None
        # A stop token ends the text without being part of it; the ids still show it.
        hidden = update.finish_reason == "stop" and bool(tokens) and not update.complete
        shown = tokens[:-1] if hidden else tokens
        drafted, used = self.text.push(shown[: update.num_accepted]) if update.num_accepted else ("", 0)
        text = drafted
        if self.text.stopped_by is None:
            more, used_too = self.text.push(shown[update.num_accepted :])
            text, used = text + more, used + used_too
        if self.text.stopped_by is None:
            used = len(tokens)
            if update.finish_reason is not None:
                text += self.text.flush()
        self.num_tokens += used
        delta = OutputDelta(
            self.parent_id,
            self.index,
            text,
            tokens[:used],
            update.logprobs[:used],
            self._prompt_logprobs(),
            num_accepted=min(update.num_accepted, used),
            accepted_characters=len(drafted),
        )
        return delta, self.text.stopped_by is not None or update.finish_reason is not None

    def last(self, delta: OutputDelta) -> OutputDelta:
        """`delta` with reason and statistics; the request must have ended in the scheduler."""
        request, stats = self.request, self.request.stats
        matched = self.text.stopped_by if request.finish_reason in ("stop", "length") else None
        stop_id = request.stop_token if request.stop_token not in self.eos_token_ids else None
        return OutputDelta(
            delta.request_id,
            delta.index,
            delta.text,
            delta.token_ids,
            delta.logprobs,
            delta.prompt_logprobs,
            "stop" if matched is not None else request.finish_reason,
            matched if matched is not None else stop_id,
            request.error,
            CompletionStats(
                num_prompt_tokens=request.num_prompt_tokens,
                num_output_tokens=self.num_tokens,
                num_cached_tokens=stats.cached_tokens,
                num_preemptions=stats.preemptions,
                queue_time=stats.queue_time,
                ttft=stats.ttft,
                tpot=stats.tpot(self.num_tokens),
                e2e=None if stats.finished is None else stats.finished - stats.arrival,
                num_drafts=stats.num_drafts,
                num_draft_tokens=stats.draft_tokens,
                num_accepted_tokens=stats.accepted_tokens,
                time_saved=stats.time_saved,
            ),
            delta.num_accepted,
            delta.accepted_characters,
            request.error_kind,
        )

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        request = self.request
        if request.params.prompt_logprobs is None or request.lacks_prompt_logprobs or self.prompt_logprobs_given:
            return ()
        self.prompt_logprobs_given = True
        return (None, *request.prompt_logprobs)
