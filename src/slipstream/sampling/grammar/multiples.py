"""Digits that make a number a multiple: a search that tries digit by digit would hardly ever meet one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import gcd

from slipstream.sampling.grammar.merging import Step

MAX_ADDED = 12  # digits

_NUMBER = re.compile(rb"(\d*)(\.?)(\d*)\Z")


def digits_to_multiple(text: bytes, steps: Iterable[Step]) -> list[bytes]:
    """For each step the fewest digits that make the number that `text` ends in a multiple of it, with and without
    decimal places; a number that is not begun yet begins with 1."""
    found = _NUMBER.search(text)
    assert found is not None
    whole, point, decimals = found.groups()
    begun = b"" if whole else b"1"
    whole = whole or begun
    ways: list[bytes] = []
    for step in steps:
        if point:
            ways.append(_added(int(whole + decimals), len(decimals), step))
        else:
            ways.append(_added(int(whole), 0, step, whole=True))
            if step.digits:
                ways.append(b"." + _added(int(whole), 0, step))
    return [begun + way for way in dict.fromkeys(ways) if way.strip(b".")]


def _added(number: int, decimals: int, step: Step, *, whole: bool = False) -> bytes:
    """Behind number / 10 ** decimals; b"" if MAX_ADDED digits are not enough."""
    scale = 10**step.digits
    for count in range(1, MAX_ADDED + 1):
        begun = number * 10**count
        modulus = step.count if whole else step.count * 10 ** (decimals + count)
        if not modulus:
            return b""
        modulus //= gcd(modulus, scale)
        rest = -begun % modulus
        if rest < 10**count:
            return str(rest).zfill(count).encode()
    return b""
