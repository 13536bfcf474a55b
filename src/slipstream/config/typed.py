"""Typed, refusing reads of setting values: what a dataclass field's annotation allows, and nothing else."""

from __future__ import annotations

import math
import reprlib
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, NoReturn

from slipstream.errors import ConfigError

_NAMES: dict[object, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def refuse(where: str, rule: str, value: object) -> NoReturn:
    raise ConfigError(f"must be {rule}, got {reprlib.repr(value)}.", where=where)


def normalise_fields(instance: Any, section: str) -> None:
    """Check every field of a frozen dataclass against its annotation (int, float, bool, str, Literal, | None).

    Integers become floats where floats are wanted; NaN, infinities and empty strings are refused.
    Raises ConfigError naming `[section] field`.
    """
    hints = typing.get_type_hints(type(instance))
    for field in fields(instance):
        value = _convert(f"[{section}] {field.name}", hints[field.name], getattr(instance, field.name))
        object.__setattr__(instance, field.name, value)


def check_range(instance: Any, section: str, name: str, rule: str, allowed: Callable[[Any], bool]) -> None:
    """Raise ConfigError unless the field is None or `allowed`."""
    value = getattr(instance, name)
    if value is not None and not allowed(value):
        refuse(f"[{section}] {name}", rule, value)


def _convert(where: str, hint: object, value: object) -> object:
    # With a Literal among them `X | Y` is a typing.Union, not a types.UnionType.
    allowed = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and type(None) in allowed:
        return None
    kinds = [kind for kind in allowed if kind is not type(None)]
    for kind in kinds:
        if typing.get_origin(kind) is Literal and isinstance(value, str) and value in typing.get_args(kind):
            return value
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            number = _finite(value)
            if number is not None:
                return number
        if kind is str and isinstance(value, str) and value:
            return value
    refuse(where, " or ".join(_describe(kind) for kind in kinds), value)


def _finite(value: int | float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _describe(kind: object) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    return _NAMES[kind]
