"""Chat templates: a list of messages to the text that a model was trained to see.

Templates are Jinja programs out of model files, so they run in a sandbox that forbids private attributes and changes to
their input. The environment is the one described in
https://huggingface.co/docs/transformers/chat_templating_writing: `raise_exception`, `strftime_now`, `tojson` without
HTML escapes, loop controls, and the `{% generation %}` block, which has no effect on the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.errors import ChatTemplateError
from slipstream.text.messages import normalize_messages, plain_data, plain_tools
from slipstream.text.tokenizer import Tokenizer

# What a template can raise while it runs on wrong input: Jinja's own errors and those of the Python operations it does.
_RUNTIME_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
_MAX_CHARACTERS = 1 << 26  # that a template may write: more than any context holds, less than a memory
_MAX_ROUNDS = 500_000  # of all its loops: seven hundred messages that each look at all others; one to two seconds
_COUNT_ROUND = "slipstream_count_round"


class ChatTemplate:
    """A compiled template. `tool_use` is the source that renders requests with tools, where a model has two.

    `special_tokens` are further names the template may use (`pad_token`, ...); `clock` gives the time for
    `strftime_now`. Raises `ChatTemplateError` if the source is not valid Jinja.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        tool_use: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        environment = _environment(clock)
        self._plain = _compile(environment, source, "default")
        self._with_tools = self._plain if tool_use is None else _compile(environment, tool_use, "tool_use")
        self._names: dict[str, object] = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that came with the tokenizer; a `ChatTemplateError` if none did."""
        source = tokenizer.chat_template
        if source is None:
            others = ", ".join(sorted(tokenizer.chat_templates))
            raise ChatTemplateError(
                f"the model has no default chat template, only: {others}."
                if others
                else "the model has no chat template: it is a base model, or its files do not include one.",
                fix="Give it a plain prompt, without chat.",
            )
        return cls(source, tokenizer.bos_token, tokenizer.eos_token, tool_use=tokenizer.chat_templates.get("tool_use"))

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **extra: object,
    ) -> str:
        """Text of the conversation; `add_generation_prompt` opens the assistant's turn at its end.

        `tools` are JSON-schema descriptions; `extra` are further names for the template (`enable_thinking`,
        `documents`, ...). Raises `InvalidParamsError` for messages that are none, and `ChatTemplateError` with the
        template's own words where it refuses them.
        """
        names = dict(self._names)
        names.update({key: plain_data(value, key) for key, value in extra.items()})
        names["messages"] = normalize_messages(messages)
        names["tools"] = plain_tools(tools) if tools else None
        names["add_generation_prompt"] = add_generation_prompt
        names[_COUNT_ROUND] = _round_counter(_MAX_ROUNDS)
        template = self._with_tools if tools else self._plain
        try:
            return _join(template.generate(names))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the chat template refuses these messages: {error.message or error}", where=_line_of(error)
            ) from error
        except _RUNTIME_ERRORS as error:
            raise ChatTemplateError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                fix="It may not support a role, a missing content or tools.",
            ) from error


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; its body just renders."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Every loop and every macro counts its rounds: a thread that renders cannot be stopped from outside."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(jinja2.nodes.For):
            if loop.test is None:
                loop.body.insert(0, _count_statement(loop.lineno))
            else:  # it is run where the body is not
                loop.test = jinja2.nodes.And(_count_call(), loop.test).set_lineno(loop.lineno)
        for macro in template.find_all(jinja2.nodes.Macro):
            macro.body.insert(0, _count_statement(macro.lineno))
        return template


def _count_call() -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.Name(_COUNT_ROUND, "load"), [], [], None, None)


def _count_statement(line: int) -> jinja2.nodes.Node:
    return jinja2.nodes.ExprStmt(_count_call()).set_lineno(line)


def _round_counter(most: int) -> Callable[[], bool]:
    """Of one rendering; always true. Raises ChatTemplateError at the round after `most`."""
    rounds = 0

    def count() -> bool:
        nonlocal rounds
        rounds += 1
        if rounds > most:
            raise ChatTemplateError(
                f"the chat template loops more than {most} times over these messages.", fix="Send fewer messages."
            )
        return True

    return count


def _environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment


def _compile(environment: ImmutableSandboxedEnvironment, source: str, name: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template is not valid Jinja: {error.message}", where=f"{name} template, line {error.lineno}"
        ) from error
    except RecursionError as error:
        raise ChatTemplateError("the chat template is nested too deeply.", where=f"{name} template") from error


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _join(pieces: Iterable[str]) -> str:
    """Their text. Raises ChatTemplateError as soon as there is too much of it."""
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _MAX_CHARACTERS:
            raise ChatTemplateError(f"the chat template writes more than {_MAX_CHARACTERS} characters.")
        kept.append(piece)
    return "".join(kept)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _line_of(error: jinja2.TemplateError) -> str | None:
    line = getattr(error, "lineno", None)
    return None if line is None else f"line {line}"
