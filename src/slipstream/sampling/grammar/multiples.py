"""Digits that make a number a multiple: a search that tries digit by digit would hardly ever meet one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import gcd

from slipstream.sampling.grammar.merging import Step

MAX_ADDED = 12  # digits
LENGTHS = 7  # tried per step

_NUMBER = re.compile(rb"(\d*)(\.?)(\d*)\Z")


def digits_to_multiple(text: bytes, steps: Iterable[Step]) -> list[bytes]:
    """For each step the fewest digits that make the number that `text` ends in a multiple of it, and the next longer
    ones, which a minimum may demand; with and without decimal places. A number that is not begun yet begins with 1."""
    found = _NUMBER.search(text)
    assert found is not None
    whole, point, decimals = found.groups()
    begun = b"" if whole else b"1"
    whole = whole or begun
    ways: list[bytes] = []
    for step in steps:
        if point:
            ways += _added(int(whole + decimals), len(decimals), step)
        else:
            ways += _added(int(whole), 0, step, whole=True)
            if step.digits:
                ways += [b"." + way for way in _added(int(whole), 0, step)[:1]]
    return [begun + way for way in dict.fromkeys(ways)]


def _added(number: int, decimals: int, step: Step, *, whole: bool = False) -> list[bytes]:
    """Behind number / 10 ** decimals, in up to MAX_ADDED digits, the smallest for each length."""
    ways: list[bytes] = []
    for count in range(1, MAX_ADDED + 1):
        modulus = step.count if whole else step.count * 10 ** (decimals + count)
        if not modulus:
            break
        modulus //= gcd(modulus, 10**step.digits)
        rest = -number * 10**count % modulus
        if rest < 10**count:
            ways.append(str(rest).zfill(count).encode())
    return ways[:LENGTHS]
