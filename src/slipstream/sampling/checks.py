"""Typed, refusing checks of single parameter values. Each returns the normalised value or raises InvalidParamsError."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Iterable, Mapping
from typing import NoReturn

from slipstream.errors import InvalidParamsError


def refuse(field: str, rule: str, value: object) -> NoReturn:
    raise InvalidParamsError(f"must be {rule}, got {reprlib.repr(value)}.", where=field)


def check_int(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """An integer (NumPy's included, bool refused) in [low, high]."""
    rule = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse(field, rule, value)
    number = int(value)
    if number < low or (high is not None and number > high):
        refuse(field, rule, value)
    return number


def check_float(field: str, value: object, rule: str, *, low: float, high: float, open_low: bool = False) -> float:
    """A finite real number (bool refused) in [low, high], or (low, high] with `open_low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(field, rule, value)
    try:
        number = float(value)
    except OverflowError:  # an integer or a fraction beyond all floats
        refuse(field, rule, value)
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        refuse(field, rule, value)
    return number


def check_bool(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        refuse(field, "true or false", value)
    return value


def check_strings(field: str, value: object) -> tuple[str, ...]:
    """One non-empty string or any number of them; None is none."""
    rule = "a non-empty string or a list of them"
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else check_list(field, rule, value)
    strings: list[str] = []
    for item in items:
        if not isinstance(item, str) or not item:
            refuse(field, rule, value)
        strings.append(item)
    return tuple(strings)


def check_token_ids(field: str, value: object) -> tuple[int, ...]:
    """A list of integers >= 0; None is the empty one."""
    if value is None:
        return ()
    return tuple(check_int(field, item, low=0) for item in check_list(field, "a list of token ids", value))


def check_token_sequences(field: str, value: object) -> tuple[tuple[int, ...], ...]:
    """A list of non-empty lists of integers >= 0; None is the empty one."""
    if value is None:
        return ()
    rule = "a list of non-empty lists of token ids"
    sequences = tuple(check_token_ids(field, item) for item in check_list(field, rule, value))
    if not all(sequences):
        refuse(field, rule, value)
    return sequences


def check_logit_bias(field: str, value: object, *, limit: float) -> dict[int, float]:
    """A new dict of token id -> finite bias in [-limit, limit]; None is the empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(field, "a mapping of token id to bias", value)
    rule = f"a finite bias from {-limit:g} to {limit:g}"
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        token = check_int(f"{field} key", token_id, low=0)
        biases[token] = check_float(f"{field}[{token}]", bias, rule, low=-limit, high=limit)
    return biases


def check_list(field: str, rule: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        refuse(field, rule, value)
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions
        refuse(field, rule, value)
