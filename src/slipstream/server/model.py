"""What the routes know of the model that is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slipstream.errors import ChatTemplateError, RequestError, TextTooLongError
from slipstream.server.beside import TextThreads
from slipstream.text.chat_template import ChatTemplate
from slipstream.text.tokenizer import Tokenizer


class ModelNotServedError(RequestError):
    """A request names a model that this server does not have."""


@dataclass(frozen=True)
class ServedModel:
    """`names`: what clients may call it, the main one first. `max_model_len`: tokens, prompt and output together.
    `created`: seconds since the epoch. `threads`: where its texts are worked on."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    created: int
    threads: TextThreads = field(default_factory=TextThreads, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.names[0]

    def require(self, name: str | None) -> str:
        """The name to answer with. Raises ModelNotServedError; without a name the one model is meant."""
        if name is None or name in self.names:
            return name or self.name
        raise ModelNotServedError(
            f"the model {name!r:.200} is not served here.", where="model", fix=f"Served: {', '.join(self.names)}."
        )

    def check_size(self, texts: Sequence[str], *, where: str) -> None:
        """Raises TextTooLongError for texts that the context cannot hold together whatever their tokens are. The first
        long text makes the tokenizer look at its whole vocabulary, so call this beside the event loop."""
        if sum(map(len, texts)) <= self.max_model_len or (bound := self.tokenizer.text_bound) is None:
            return
        characters = sum(map(bound.counted, texts))
        if characters > self.max_model_len * bound.longest:
            raise TextTooLongError(characters, self.max_model_len, bound.longest, where=where)

    @cached_property
    def _template(self) -> ChatTemplate | ChatTemplateError:
        try:
            return ChatTemplate.of(self.tokenizer)
        except ChatTemplateError as error:
            return error

    @property
    def template(self) -> ChatTemplate:
        """Raises ChatTemplateError, a request's error here, if the model has none."""
        if isinstance(self._template, ChatTemplateError):
            raise self._template
        return self._template
