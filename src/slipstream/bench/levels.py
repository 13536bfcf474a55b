"""Levels of a sweep as written on the command line."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TypeVar

from slipstream.errors import UsageError

MAX_CONCURRENCY = 4096
Number = TypeVar("Number", int, float)
_NUMBER = re.compile(r"[0-9]{1,9}")
_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def parse_concurrency(text: str) -> tuple[int, ...]:
    """ "1,2,4..64": numbers in rising order, and A..B for A, 2A, 4A ... up to B. Raises UsageError."""
    found: list[int] = []
    for term in text.split(","):
        first, dots, last = (part.strip() for part in term.partition(".."))
        numbers = [int(each) if _NUMBER.fullmatch(each) else 0 for each in ((first, last) if dots else (first,))]
        if not all(1 <= each <= MAX_CONCURRENCY for each in numbers) or numbers[0] > numbers[-1]:
            raise UsageError(
                f"{term.strip()!r} is not a number of requests at once, nor a range LOW..HIGH of them.",
                where="--concurrency",
                fix=f"Write 1,2,4..64; the highest is {MAX_CONCURRENCY}.",
            )
        value = numbers[0]
        while value < numbers[-1]:
            found.append(value)
            value *= 2
        found.append(numbers[-1])
    return _rising(found, "--concurrency")


def parse_rates(text: str) -> tuple[float, ...]:
    """ "0.5,1,2": requests per second in rising order. Raises UsageError."""
    found: list[float] = []
    for term in text.split(","):
        value = float(term) if _RATE.fullmatch(term.strip()) else math.nan
        if not value > 0:
            raise UsageError(
                f"{term.strip()!r} is not a rate in requests per second.", where="--rate", fix="Write 0.5,1,2."
            )
        found.append(value)
    return _rising(found, "--rate")


def _rising(values: list[Number], where: str) -> tuple[Number, ...]:
    if any(after <= before for before, after in pairwise(values)):
        raise UsageError("the levels must rise, each above the one before.", where=where)
    return tuple(values)
