"""`slipstream chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from slipstream.cli.conversation import Conversation, run_command
from slipstream.cli.length import with_default_length
from slipstream.cli.load import load_llm
from slipstream.cli.options import engine_options, sampling_options
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.prompt_line import PromptLine
from slipstream.cli.render import note, speed_line
from slipstream.engine.llm import LLM
from slipstream.errors import ContextLengthError, InvalidParamsError, RequestError
from slipstream.sampling.params import SamplingParams

DEFAULTS: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.95}
MAX_ANSWER = 1024  # tokens, when nobody says otherwise: a small model may never end by itself


@engine_options
@sampling_options
def chat(
    model: Annotated[str, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")],
    *,
    system: Annotated[str | None, Option(metavar="TEXT", help="System message.")] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No greeting and no speed lines.")] = False,
    settings: Mapping[str, Any],
    sampling: Mapping[str, Any],
) -> None:
    """Talk with a model. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.

    Without sampling options answers are drawn at temperature 0.7, top-p 0.95, and end after 1024 tokens.
    """
    _edit_lines()
    conversation = Conversation(SamplingParams.from_mapping({**DEFAULTS, **sampling}))
    if system is not None:
        conversation.set_system(system)
    with load_llm(model, settings, quiet=quiet, interactive=True) as llm:
        llm.require_chat_template()
        if not quiet:
            note(f"{model}: {llm.plan.options.max_model_len} tokens of context. /help lists commands, Ctrl-D leaves.")
        while not conversation.ended:
            _turn(llm, conversation, quiet=quiet)


def _turn(llm: LLM, conversation: Conversation, *, quiet: bool) -> None:
    try:
        line = _read_line()
    except EOFError:
        conversation.ended = True
        if sys.stdin.isatty():
            note("")
        return
    except KeyboardInterrupt:
        note("\n(Ctrl-D leaves)")
        return
    question: str | None = line
    if line.startswith("/"):
        try:
            reply = run_command(conversation, line)
        except InvalidParamsError as error:
            note(f"error: {error}")
            return
        if reply.text:
            note(reply.text)
        question = reply.ask
    if question is not None and question.strip():
        _answer(llm, conversation, question, quiet=quiet)


def _edit_lines() -> None:
    """Cursor keys and history in `input`, where Python was built with them."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  its import is what switches editing on


def _read_line() -> str:
    """One line, or several where each but the last ends in a backslash."""
    lines = []
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        line = input(prompt)
        if not line.endswith("\\"):
            lines.append(line)
            return "\n".join(lines)
        lines.append(line[:-1])
        prompt = ". " if prompt else ""


def _answer(llm: LLM, conversation: Conversation, question: str, *, quiet: bool) -> None:
    conversation.add_user(question)
    text, stats, error = "", None, None
    try:
        prompt = llm.encode_chat(conversation.messages)
        context = llm.plan.options.max_model_len
        params = with_default_length(conversation.params, len(prompt), context, MAX_ANSWER)
        with (
            PromptLine(quiet=quiet) as line,
            contextlib.closing(llm.stream(prompt, params, prompt_progress=line.show)) as stream,
        ):
            for delta in stream:
                line.clear()
                text += delta.text
                stats, error = delta.stats, delta.error
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        note("\n(stopped)")
    except RequestError as failure:
        conversation.undo()
        note(f"error: {failure}")
        if isinstance(failure, ContextLengthError):
            note("/clear forgets the conversation, /undo its last part.")
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    if error is not None:
        conversation.undo()
        note(f"error: {error}")
        return
    conversation.add_assistant(text)
    if stats is not None and not quiet:
        note(speed_line(stats, context=context))
