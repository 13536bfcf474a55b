"""What a verb takes, declared in its signature as Annotated[type, Argument(...)] or Annotated[type, Option(...)].

A plain command line is read here, in a millisecond. Everything else (help, mistakes, unusual spellings) goes to typer,
which reads the same declarations and takes a third of a second to get ready.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from slipstream.lean import dataclass

Verb = Callable[..., None]

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?(e-?[0-9]{1,3})?")


@dataclass(frozen=True)
class Argument:
    """A parameter that is given by position."""

    metavar: str | None = None
    help: str | None = None


@dataclass(frozen=True, init=False)
class Option:
    """A parameter with a name, by default the parameter's own. Spellings as in typer: "--quiet", "-q", "--a/--no-a"."""

    spellings: tuple[str, ...]
    metavar: str | None = None
    help: str | None = None
    show_default: bool = True

    def __init__(
        self, *spellings: str, metavar: str | None = None, help: str | None = None, show_default: bool = True
    ) -> None:
        object.__setattr__(self, "spellings", spellings)
        object.__setattr__(self, "metavar", metavar)
        object.__setattr__(self, "help", help)
        object.__setattr__(self, "show_default", show_default)


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: type  # None taken away
    default: Any
    declared: Argument | Option

    @property
    def spellings(self) -> dict[str, bool]:
        """What names it on the command line; of a flag, with what it then is."""
        if isinstance(self.declared, Argument):
            return {}
        own = "--" + self.name.replace("_", "-")
        written = self.declared.spellings or ((f"{own}/--no-{own[2:]}" if self.kind is bool else own),)
        return {
            spelling: number == 0 for group in written for number, spelling in enumerate(group.split("/")) if spelling
        }


def read_plainly(verb: Verb, args: Sequence[str]) -> dict[str, Any] | None:
    """The verb's arguments, or None where the command line is not a plain one, which says nothing against it."""
    parameters = _parameters(verb)
    if not parameters:
        return None
    by_spelling = {spelling: each for each in parameters for spelling in each.spellings}
    places = [each for each in parameters if isinstance(each.declared, Argument)]
    given: dict[str, Any] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        spelling, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-") and places:
            found, text = places.pop(0), word
        elif spelling not in by_spelling:
            return None
        else:
            found = by_spelling[spelling]
            if found.kind is not bool and not equals:
                if not rest or rest[0].startswith("-"):
                    return None
                text = rest.pop(0)
            elif found.kind is bool and equals:
                return None
        value = found.spellings[spelling] if found.kind is bool else _read(found.kind, text)
        if value is None or (found.name in given and found.kind is not list):
            return None
        given[found.name] = [*given.get(found.name, ()), text] if found.kind is list else value
    for each in parameters:
        if each.name not in given and each.default is inspect.Parameter.empty:
            return None
    return {each.name: given.get(each.name, each.default) for each in parameters}


def for_typer(verb: Verb) -> Verb:
    """The same function, declared in typer's terms."""
    import typer

    def declared(hint: Any) -> Any:
        kind, ours = (get_args(hint) if get_origin(hint) is Annotated else (hint, None))[:2]
        if isinstance(ours, Argument):
            return Annotated[kind, typer.Argument(metavar=ours.metavar, help=ours.help)]
        if isinstance(ours, Option):
            return Annotated[
                kind,
                typer.Option(*ours.spellings, metavar=ours.metavar, help=ours.help, show_default=ours.show_default),
            ]
        return hint

    def call(**arguments: Any) -> None:
        verb(**arguments)

    hints = get_type_hints(verb, include_extras=True)
    parameters = [
        each.replace(annotation=declared(hints[each.name]), kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(verb).parameters.values()
    ]
    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def _parameters(verb: Verb) -> list[_Parameter] | None:
    """None if one is declared in other ways than those of this module."""
    hints = get_type_hints(verb, include_extras=True)
    found: list[_Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        hint = hints.get(name)
        if get_origin(hint) is not Annotated:
            return None
        kind, declared = get_args(hint)[:2]
        if get_origin(kind) in (Union, UnionType):
            kind = next(each for each in get_args(kind) if each is not NoneType)
        if not isinstance(declared, Argument | Option):
            return None
        found.append(_Parameter(name, get_origin(kind) or kind, parameter.default, declared))
    return found


def _read(kind: type, text: str) -> Any:
    """The value, or None where typer had better look at it."""
    if kind in (str, list):
        return text
    if kind is int:
        return int(text) if _INTEGER.fullmatch(text) else None
    if kind is float:
        return float(text) if _NUMBER.fullmatch(text) else None
    return Path(text) if kind is Path and text else None
