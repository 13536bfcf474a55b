"""Every error Slipstream raises on purpose.

SlipstreamError                     exit code 1
├── UsageError                      2   wrong option, wrong configuration
│   ├── ConfigError                     unknown or invalid setting
│   └── FeatureConflictError            two features that are refused together
├── ModelError                      3   the model's files
│   ├── ModelNotFoundError
│   ├── ModelFormatError                truncated, inconsistent or hostile file
│   ├── UnsupportedModelError           an architecture or option nobody here implements
│   ├── TokenizerError
│   └── ChatTemplateError
├── RequestError                    4   one request; never harms another
│   ├── InvalidParamsError
│   ├── GrammarError                    its grammar cannot be followed any further
│   ├── ContextLengthError
│   ├── TextTooLongError                not even the longest tokens could hold it
│   ├── OverloadedError                 come back later
│   └── DeadlineError                   it could not end in its time
├── ResourceError                   5
│   ├── InsufficientMemoryError
│   └── DiskSpaceError
├── DownloadError                   6
└── EngineError                     7   the engine stopped or was closed
    └── EngineUnavailableError          it starts or restarts; come back later

`server.listen.AddressInUseError` has 8. An error says what was wrong, where, and what to do.
"""

from __future__ import annotations

from typing import Literal


class SlipstreamError(Exception):
    """Base class. `what` is a sentence; `where` names the file, field or request; `fix` says what to do."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message} {fix}" if fix else message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[SlipstreamError], args: tuple[object, ...], state: dict[str, object]) -> SlipstreamError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(SlipstreamError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class FeatureConflictError(UsageError):
    pass


class ModelError(SlipstreamError):
    exit_code = 3


class ModelNotFoundError(ModelError):
    pass


class ModelFormatError(ModelError):
    pass


class UnsupportedModelError(ModelError):
    pass


class TokenizerError(ModelError):
    pass


class ChatTemplateError(ModelError):
    pass


class RequestError(SlipstreamError):
    exit_code = 4


class InvalidParamsError(RequestError):
    pass


FailureKind = Literal["grammar"]  # what ended one completion, where it is known to be of the request's own making


class GrammarError(RequestError):
    """In the middle of an answer: the grammar that was asked for has come to a limit, or takes too much time."""


class ContextLengthError(RequestError):
    """The prompt does not fit, with one output token or with the `num_output_tokens` asked for; carries the numbers."""

    def __init__(
        self,
        num_prompt_tokens: int,
        max_model_len: int,
        *,
        num_output_tokens: int | None = None,
        where: str | None = None,
    ) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.max_model_len = max_model_len
        asked, together, lower = "", "prompt and at least one output token together", ""
        if num_output_tokens is not None:
            asked, together = f" and max_tokens asks for {num_output_tokens}", "prompt and output together"
            lower = " lower max_tokens,"
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens{asked}, but the context holds {max_model_len} ({together}).",
            where=where,
            fix=f"Shorten the prompt,{lower} or raise max_model_len as far as model and memory allow.",
        )


class TextTooLongError(RequestError):
    """The prompt's text does not fit even if its tokens are the longest that there are; carries the numbers."""

    def __init__(
        self, num_characters: int, max_model_len: int, characters_per_token: int, *, where: str | None = None
    ) -> None:
        self.num_characters = num_characters
        self.max_model_len = max_model_len
        self.characters_per_token = characters_per_token
        super().__init__(
            f"the text has {num_characters} characters, but the context holds {max_model_len} tokens, and no token of "
            f"this model stands for more than {characters_per_token}: {max_model_len * characters_per_token} at most.",
            where=where,
            fix="Shorten the prompt, or raise max_model_len as far as model and memory allow.",
        )


class OverloadedError(RequestError):
    """The queue is full. `retry_after`: seconds after which there should be room; None while nothing is measured."""

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, fix=fix)


class DeadlineError(RequestError):
    """The request cannot end before its deadline. `retry_after`: seconds after which it might; None if never."""

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, fix=fix)


class ResourceError(SlipstreamError):
    exit_code = 5


class InsufficientMemoryError(ResourceError):
    pass


class DiskSpaceError(ResourceError):
    pass


class DownloadError(SlipstreamError):
    exit_code = 6


class EngineError(SlipstreamError):
    exit_code = 7


class EngineUnavailableError(EngineError):
    """The engine is starting or restarting. `retry_after`: seconds after which it should be ready; None: not known."""

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(what, where=where, fix=fix)
