"""Finds the verb, runs it, and turns every outcome into a message and an exit code.

The dispatch is by hand so that `slipstream --help` imports neither typer nor any verb; a verb reads a plain
command line itself, and typer every other one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slipstream.cli.exit_codes import MEANINGS, ExitCode, summary
from slipstream.cli.verbs import VERBS, Verb
from slipstream.errors import SlipstreamError, UsageError


def dispatch(args: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return the exit code; errors go to stderr."""
    debug = False
    rest = list(args)
    try:
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option in ("-h", "--help"):
                print(_help())
                return _flushed(ExitCode.OK)
            if option == "--version":
                from slipstream.version import installed_version

                print(f"slipstream {installed_version()}")
                return _flushed(ExitCode.OK)
            if option != "--debug":
                raise UsageError(f"there is no option {option}.", fix="See `slipstream --help`.")
            debug = True
        if not rest:
            print(_help())
            return _flushed(ExitCode.OK)
        return _flushed(_run_verb(_find(rest[0]), rest[1:]))
    except SlipstreamError as error:
        _show_traceback(debug)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _show_traceback(debug)
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OUTPUT_CLOSED
    except OSError as error:
        _show_traceback(debug)
        print(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}.", file=sys.stderr)
        return ExitCode.RESOURCES if error.errno in (errno.ENOSPC, errno.EDQUOT) else ExitCode.UNEXPECTED
    except MemoryError:
        _show_traceback(debug)
        print("error: there is not enough memory.", file=sys.stderr)
        return ExitCode.RESOURCES
    except Exception as error:  # noqa: BLE001 - the last resort: a user gets a sentence, not a traceback
        _show_traceback(debug)
        if _is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return ExitCode.INTERRUPTED
        print(f"error: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        if not debug:
            import shlex

            print(f"This is a defect; `slipstream --debug {shlex.join(rest)}` shows where.", file=sys.stderr)
        return ExitCode.UNEXPECTED


def _is_interrupt(error: BaseException | None) -> bool:
    """Python itself makes RuntimeErrors of interrupts that strike while a class is made."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _run_verb(verb: Verb, args: list[str]) -> int:
    from importlib import import_module

    from slipstream.cli.parameters import for_typer, read_plainly

    args = ["--help" if each == "-h" else each for each in args]
    target = getattr(import_module(verb.module), verb.attribute)
    if isinstance(target, tuple):
        return _run_group(verb, target, args)
    arguments = read_plainly(target, args) if callable(target) else None
    if arguments is not None:
        target(**arguments)
        return ExitCode.OK
    import typer
    from typer.main import get_command

    if isinstance(target, typer.Typer):
        app = target
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(verb.name.rpartition(" ")[2], epilog=summary())(for_typer(target))
    command = get_command(app)
    try:
        with command.make_context(f"slipstream {verb.name}", args) as context:
            command.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        see = f"See `slipstream {verb.name} --help`."
        unknown = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
        if unknown is not None:
            raise UsageError(f"there is no option {unknown}.", fix=_nearest_option(unknown, command, see)) from error
        raise UsageError(_sentence(error.format_message()), fix=see) from error
    return ExitCode.OK


def _nearest_option(unknown: str, command: Any, see: str) -> str:
    """By the words alone: with the hyphens that all options have in common, --duration would be close to --rate."""
    from slipstream.config.suggest import nearest_name

    known = {spelling.lstrip("-"): spelling for each in command.params for spelling in each.opts}
    near = nearest_name(unknown.lstrip("-"), known)
    return see if near is None else f"Did you mean {known[near]}? {see}"


def _run_group(group: Verb, verbs: tuple[Verb, ...], args: list[str]) -> int:
    """A verb with verbs of its own: `slipstream bench serve`."""
    if not args or args[0] == "--help":
        print(f"Usage: slipstream {group.name} VERB [options]\n\n{group.help}\n\nVerbs:\n{_listed(verbs)}\n")
        print(f"`slipstream {group.name} VERB --help` shows a verb's options.")
        return ExitCode.OK
    found = _find(args[0], verbs, f"{group.name} ")
    return _run_verb(replace(found, name=f"{group.name} {found.name}"), args[1:])


def _find(name: str, verbs: Sequence[Verb] | None = None, group: str = "") -> Verb:
    verbs = VERBS if verbs is None else verbs
    for verb in verbs:
        if verb.name == name:
            return verb
    from difflib import get_close_matches

    near = get_close_matches(name, [verb.name for verb in verbs], n=1)
    fix = f"Did you mean `slipstream {group}{near[0]}`?" if near else f"See `slipstream {group}--help` for the verbs."
    raise UsageError(f"there is no verb {group + name!r}.", fix=fix)


def _flushed(code: int) -> int:
    """Flush here, where a closed pipe is still handled."""
    sys.stdout.flush()
    return code


def _sentence(text: str) -> str:
    text = text[:1].lower() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _show_traceback(debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()


def _listed(verbs: Sequence[Verb]) -> str:
    width = max(len(verb.name) for verb in verbs)
    return "\n".join(f"  {verb.name:<{width}}  {verb.help}" for verb in verbs)


def _help() -> str:
    verbs = _listed(VERBS)
    codes = "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
    return f"""Usage: slipstream [--debug] VERB [MODEL] [options]

Fast large-language-model inference on the hardware you have.
MODEL is a name (see `slipstream pull --list`), a file, a folder, or a pulled Hub repository as org/name.

Verbs:
{verbs}

Options:
  --debug    show tracebacks of errors
  --version  show the version
  --help     show this; `slipstream VERB --help` shows a verb's options

Exit codes:
{codes}"""
