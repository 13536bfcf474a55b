"""Token ids -> text, for one completion: incremental detokenisation, stop strings, what the caller sees."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.sampling.params import SamplingParams
from slipstream.text.detokenize import IncrementalDetokenizer
from slipstream.text.stop import StopChecker
from slipstream.text.tokenizer import Tokenizer


class TextAssembler:
    """Feeds tokens, gives text that can be shown now.

    With a stop string in play, text that could be its beginning is held back. After a match `stopped_by` names
    the string and everything behind it is dropped.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self.stopped_by: str | None = None
        self._detokenizer = (
            IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)
            if tokenizer is not None
            else None
        )
        self._stop = StopChecker(params.stop, params.include_stop_str_in_output) if params.stop else None

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """(text to show, tokens used): tokens behind the one that completed a stop string are not used."""
        if self._detokenizer is None:
            return "", len(token_ids)
        shown = ""
        for used, token in enumerate(token_ids, 1):
            shown += self._check(self._detokenizer.push(token))
            if self.stopped_by is not None:
                return shown, used
        return shown, len(token_ids)

    def flush(self) -> str:
        """The rest, once no token follows. May still complete a stop string."""
        if self._detokenizer is None or self.stopped_by is not None:
            return ""
        shown = self._check(self._detokenizer.flush())
        if self._stop is not None and self.stopped_by is None:
            shown += self._stop.flush()
        return shown

    def _check(self, text: str) -> str:
        if self._stop is None:
            return text
        result = self._stop.push(text)
        self.stopped_by = result.matched
        return result.text
