"""Text to token ids, off the event loop where it would hold others up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from slipstream.errors import ContextLengthError, InvalidParamsError
from slipstream.server.errors import BadRequestError
from slipstream.server.generate import Prompt
from slipstream.server.model import ServedModel
from slipstream.text.control import encode_messages

INLINE_CHARACTERS = 2000  # that are tokenised in well under a millisecond

Result = TypeVar("Result")


async def completion_prompt(model: ServedModel, prompt: str | Sequence[int]) -> Prompt:
    """A text in which special tokens count (the client writes the template itself), or token ids as they are.

    Raises ContextLengthError.
    """
    if isinstance(prompt, str):
        return _fitting(model, Prompt(tuple(await encode_text(model, prompt)), prompt))
    return _fitting(model, Prompt(tuple(prompt)))


async def chat_prompt(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> Prompt:
    """As `render_chat`. Raises ContextLengthError too, and BadRequestError for more messages than the context holds
    tokens: a hundred thousand empty ones take many seconds to render."""
    if len(messages) >= model.max_model_len:
        raise BadRequestError(
            f"{len(messages)} messages cannot fit into a context of {model.max_model_len} tokens.", param="messages"
        )
    ids = await render_chat(model, messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra)
    return _fitting(model, Prompt(tuple(ids)))


async def encode_text(model: ServedModel, text: str, *, add_special_tokens: bool = True) -> list[int]:
    return await off_loop(len(text), lambda: model.tokenizer.encode(text, add_special_tokens=add_special_tokens))


async def render_chat(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of the conversation in the model's template. Spellings of control tokens in it stay text.

    Raises InvalidParamsError for messages that are none, ChatTemplateError where the template refuses them.
    """
    template = model.template
    for name in extra or ():
        if name in ("messages", "tools", "add_generation_prompt"):
            raise InvalidParamsError(f"must not contain {name!r}.", where="chat_template_kwargs")
    return await off_loop(
        _characters(messages) + _characters(tools),
        lambda: encode_messages(
            template,
            model.tokenizer,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            extra=extra,
        ),
    )


def _fitting(model: ServedModel, prompt: Prompt) -> Prompt:
    if len(prompt.token_ids) >= model.max_model_len:
        raise ContextLengthError(len(prompt.token_ids), model.max_model_len)
    return prompt


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(item) for item in value.values())
    if isinstance(value, Sequence):
        return sum(_characters(item) for item in value)
    return 0


async def off_loop(size: int, work: Callable[[], Result]) -> Result:
    """In a thread where the work is long; `size`: characters or tokens."""
    return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)
