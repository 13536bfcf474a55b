"""POST /v1/completions."""

from __future__ import annotations

from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import BadRequestError, UnsupportedError
from slipstream.server.options import ServerOptions
from slipstream.server.schema.base import Items
from slipstream.server.schema.common import SharedFields, TokenId, sampling_params

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionRequest(SharedFields):
    prompt: str | Items[TokenId] | Items[str] | Items[Items[TokenId]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(item, int) for item in self.prompt) and self.prompt:
            return [[int(item) for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]


def completion_params(body: CompletionRequest, options: ServerOptions) -> SamplingParams:
    """max_tokens 0 (with echo) is 1 here: the engine always draws, and the route drops what it drew."""
    if body.suffix:
        raise UnsupportedError("filling in before a suffix is not supported by these models.", where="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedError(
            "is not supported: every completion that is computed is returned.", where="best_of", fix="Use n."
        )
    if not body.prompts:
        raise BadRequestError("is empty.", param="prompt")
    if len(body.prompts) > options.max_prompts:
        raise BadRequestError(f"has {len(body.prompts)} prompts; at most {options.max_prompts}.", param="prompt")
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0:
        if not body.echo:
            raise InvalidParamsError("must be at least 1, or echo must be true.", where="max_tokens")
        max_tokens = 1
    return sampling_params(
        body,
        options,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
