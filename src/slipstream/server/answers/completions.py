"""The answer of /v1/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.engine.outputs import OutputDelta, RequestOutput
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.server.generate import Job, Prompt
from slipstream.server.logprobs import CompletionLogprobs
from slipstream.server.usage import Account
from slipstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """`echo`: the prompt comes first. `drop_output`: max_tokens was 0, so what was drawn is not shown."""

    job: Job
    model: str
    created: int
    tokenizer: Tokenizer
    echo: bool = False
    drop_output: bool = False

    def head(self) -> dict[str, Any]:
        return {"id": f"cmpl-{self.job.id}", "object": "text_completion", "created": self.created, "model": self.model}

    def whole(self, outputs: Sequence[RequestOutput], account: Account, *, timings: bool) -> dict[str, Any]:
        n = self.job.params.n
        choices = [
            self._choice(number * n + index, prompt, output, index)
            for number, (prompt, output) in enumerate(zip(self.job.prompts, outputs, strict=True))
            for index in range(n)
        ]
        extra = {"timings": account.timings()} if timings else {}
        return {**self.head(), "choices": choices, "usage": account.usage(), **extra}

    def _choice(self, number: int, prompt: Prompt, output: RequestOutput, index: int) -> dict[str, Any]:
        completion = output.outputs[index]
        delta = OutputDelta(
            self.job.id,
            number,
            completion.text,
            tuple(completion.token_ids),
            tuple(completion.logprobs or ()),
            tuple(output.prompt_logprobs or ()),
            completion.finish_reason,
            completion.stop_reason,
        )
        return _ChoiceWriter(self, prompt).choice(delta)


class CompletionStream:
    """Chunks of one job, from its deltas."""

    def __init__(self, form: CompletionForm) -> None:
        self._form = form
        n = form.job.params.n
        self._writers = [_ChoiceWriter(form, prompt) for prompt in form.job.prompts for _ in range(n)]

    def opening(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, delta: OutputDelta) -> list[dict[str, Any]]:
        choice = self._writers[delta.index].choice(delta)
        if not choice["text"] and choice["logprobs"] is None and delta.finish_reason is None:
            return []  # a character or a possible stop string is not complete
        return [{**self._form.head(), "choices": [choice]}]


class _ChoiceWriter:
    def __init__(self, form: CompletionForm, prompt: Prompt) -> None:
        self._form = form
        self._prompt = prompt
        self._fresh = True
        params = form.job.params
        self._logprobs = None if params.logprobs is None else CompletionLogprobs(form.tokenizer, params.logprobs)

    def choice(self, delta: OutputDelta) -> dict[str, Any]:
        text, token_ids = delta.text, delta.token_ids
        entries: list[TokenLogprob | None] = [*delta.logprobs]
        if self._form.drop_output:
            text, token_ids, entries = "", (), []
        prompt_length = 0
        if self._fresh and self._form.echo:
            prompt = self._prompt
            text = (prompt.text if prompt.text is not None else self._form.tokenizer.decode(prompt.token_ids)) + text
            if delta.prompt_logprobs:
                token_ids, entries = (*prompt.token_ids, *token_ids), [*delta.prompt_logprobs, *entries]
                prompt_length = len(prompt.token_ids)
        self._fresh = False
        logprobs = None
        if self._logprobs is not None and (entries or delta.finish_reason is not None):
            token_ids = token_ids[: len(entries)]
            shown = [self._shown(token, position < prompt_length, position) for position, token in enumerate(token_ids)]
            logprobs = self._logprobs.chunk(token_ids, entries, shown)
        return {
            "index": delta.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _shown(self, token_id: int, in_prompt: bool, position: int) -> bool:
        """Whether the token is in the text: a BOS that encoding put before it is not, nor are skipped special ones."""
        tokenizer, text = self._form.tokenizer, self._prompt.text
        if not tokenizer.is_special(token_id):
            return True
        if in_prompt and text is not None:
            return position > 0 or text.startswith(tokenizer.id_to_token(token_id) or "")
        return not in_prompt and not self._form.job.params.skip_special_tokens
