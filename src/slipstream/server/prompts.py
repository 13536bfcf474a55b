"""Text to token ids, off the event loop where it would hold others up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipstream.errors import ContextLengthError, InvalidParamsError
from slipstream.server.errors import BadRequestError
from slipstream.server.generate import Prompt
from slipstream.server.model import ServedModel
from slipstream.text.control import encode_messages


async def completion_prompt(model: ServedModel, prompt: str | Sequence[int]) -> Prompt:
    """A text in which special tokens count (the client writes the template itself), or token ids as they are.

    Raises ContextLengthError, and TextTooLongError before anything is tokenised.
    """
    if isinstance(prompt, str):

        def encode() -> list[int]:
            model.check_size([prompt], where="prompt")
            return model.tokenizer.encode(prompt)

        return _fitting(model, Prompt(tuple(await model.threads.run(len(prompt), encode)), prompt))
    return _fitting(model, Prompt(tuple(prompt)))


async def chat_prompt(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> Prompt:
    """As `render_chat`, for the engine. Raises ContextLengthError too, and what takes long to refuse otherwise:
    BadRequestError for more messages than the context holds tokens (a hundred thousand empty ones take many seconds
    to render), TextTooLongError for more text, before or after rendering, than its longest tokens could hold."""
    if len(messages) >= model.max_model_len:
        raise BadRequestError(
            f"{len(messages)} messages cannot fit into a context of {model.max_model_len} tokens.", param="messages"
        )
    ids = await render_chat(
        model, messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra, must_fit=True
    )
    return _fitting(model, Prompt(tuple(ids)))


def require_few_values(model: ServedModel, **parts: object) -> None:
    """Raises BadRequestError that names the part of the request with which there are more items of lists and fields of
    objects than a conversation of this context has by far. Bounds of characters do not see them: two million `{}` in
    the place of tool calls hold everybody up for many seconds before a template makes text of them."""
    most = 65_536 + 16 * model.max_model_len
    left = most
    for name, part in parts.items():
        waiting = [part]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict | list):
                left -= len(value)
                if left < 0:
                    raise BadRequestError(
                        f"has too many list items and object fields: at most {most} in all of {', '.join(parts)}.",
                        param=name,
                    )
                waiting.extend(value.values() if isinstance(value, dict) else value)


async def encode_text(model: ServedModel, text: str, *, add_special_tokens: bool = True) -> list[int]:
    return await model.threads.run(
        len(text), lambda: model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    )


async def render_chat(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
    must_fit: bool = False,
) -> list[int]:
    """Token ids of the conversation in the model's template. Spellings of control tokens in it stay text.

    Raises InvalidParamsError for messages that are none, ChatTemplateError where the template refuses them, and with
    `must_fit` TextTooLongError.
    """
    template = model.template
    for name in extra or ():
        if name in ("messages", "tools", "add_generation_prompt"):
            raise InvalidParamsError(f"must not contain {name!r}.", where="chat_template_kwargs")

    def check(*texts: str) -> None:
        if must_fit:
            model.check_size(texts, where="messages")

    def encode() -> list[int]:
        check(*_strings(messages), *_strings(tools))
        return encode_messages(
            template,
            model.tokenizer,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            extra=extra,
            check=check,
        )

    return await model.threads.run(size_of(messages, tools, extra), encode)


def _fitting(model: ServedModel, prompt: Prompt) -> Prompt:
    if len(prompt.token_ids) >= model.max_model_len:
        raise ContextLengthError(len(prompt.token_ids), model.max_model_len)
    return prompt


def _strings(value: object) -> Iterator[str]:
    """All but the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def size_of(*values: object) -> int:
    """Roughly the characters of their JSON."""
    return sum(map(_size, values))


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(1 + _size(item) for pair in value.items() for item in pair)
    return sum(1 + _size(item) for item in value) if isinstance(value, Sequence) else 1
