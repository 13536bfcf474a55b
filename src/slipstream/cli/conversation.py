"""The state of a `slipstream chat` session and its /commands, without any terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import SamplingParams


@dataclass(slots=True)
class Conversation:
    """Messages so far (a system message first, if any) and the sampling parameters in force."""

    params: SamplingParams
    messages: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False

    def set_system(self, text: str) -> None:
        self.messages = [m for m in self.messages if m["role"] != "system"]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def add_user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def add_assistant(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def undo(self) -> str | None:
        """Drop the last exchange; the user's text of it."""
        while self.messages and self.messages[-1]["role"] != "system":
            message = self.messages.pop()
            if message["role"] == "user":
                return str(message["content"])
        return None


@dataclass(frozen=True, slots=True)
class Reply:
    """`text` is shown; with `ask` the given user text is sent to the model."""

    text: str = ""
    ask: str | None = None


def _help(conversation: Conversation, argument: str) -> Reply:
    width = max(len(usage) for usage, _, _ in _COMMANDS.values())
    return Reply("\n".join(f"{usage:<{width}}  {what}" for usage, what, _ in _COMMANDS.values()))


def _exit(conversation: Conversation, argument: str) -> Reply:
    conversation.ended = True
    return Reply()


def _clear(conversation: Conversation, argument: str) -> Reply:
    conversation.messages = [m for m in conversation.messages if m["role"] == "system"]
    return Reply("The conversation is empty again.")


def _system(conversation: Conversation, argument: str) -> Reply:
    conversation.set_system(argument)
    return Reply("System message set." if argument else "System message removed.")


def _undo(conversation: Conversation, argument: str) -> Reply:
    return Reply("There is nothing to undo." if conversation.undo() is None else "The last exchange is gone.")


def _retry(conversation: Conversation, argument: str) -> Reply:
    text = conversation.undo()
    return Reply("There is nothing to repeat.") if text is None else Reply(ask=text)


def _set(conversation: Conversation, argument: str) -> Reply:
    name, _, text = argument.partition(" ")
    if not name:
        changed = {key: getattr(conversation.params, key) for key in _SETTABLE}
        return Reply("\n".join(f"{key} = {value}" for key, value in changed.items()))
    if name not in _SETTABLE:
        raise InvalidParamsError(f"{name!r} cannot be set here.{_nearest(name, _SETTABLE)}", where="/set")
    try:
        value: Any = None if text.lower() in ("", "none") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParamsError(f"{text!r:.80} is not a number.", where=f"/set {name}") from error
    conversation.params = replace(conversation.params, **dict[str, Any]({name: value}))
    return Reply(f"{name} = {value}")


def _save(conversation: Conversation, argument: str) -> Reply:
    if not argument:
        return Reply("Name a file: /save FILE")
    try:
        Path(argument).write_text(json.dumps(conversation.messages, ensure_ascii=False, indent=1) + "\n", "utf-8")
    except OSError as error:
        return Reply(f"Cannot write {argument}: {error.strerror}.")
    return Reply(f"Saved {len(conversation.messages)} messages to {argument}.")


_SETTABLE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "seed",
)

_COMMANDS: dict[str, tuple[str, str, Callable[[Conversation, str], Reply]]] = {
    "help": ("/help", "this list", _help),
    "clear": ("/clear", "forget the conversation, keep the system message", _clear),
    "system": ("/system TEXT", "set the system message (no text: remove it)", _system),
    "set": ("/set NAME VALUE", "change a sampling setting (no name: show them)", _set),
    "retry": ("/retry", "answer the last question again", _retry),
    "undo": ("/undo", "drop the last question and its answer", _undo),
    "save": ("/save FILE", "write the messages as JSON", _save),
    "exit": ("/exit", "leave (Ctrl-D does too)", _exit),
}


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def run_command(conversation: Conversation, line: str) -> Reply:
    """Carry out `/name argument`. Raises InvalidParamsError for a value that cannot be set."""
    name, _, argument = line[1:].partition(" ")
    name = {"quit": "exit", "bye": "exit", "?": "help"}.get(name, name)
    if name not in _COMMANDS:
        return Reply(f"There is no command /{name}.{_nearest(name, tuple(_COMMANDS))} /help lists them.")
    return _COMMANDS[name][2](conversation, argument.strip())
