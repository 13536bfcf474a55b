from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.grammar.merging import Step
from slipstream.sampling.grammar.multiples import digits_to_multiple

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("text", "steps", "ways"),
    [
        (b'{"a":12', [Step(7, 0)], [b"6"]),
        (b"[-4", [Step(10, 0)], [b"0"]),
        (b"[", [Step(13, 0)], [b"13"]),
        (b"1", [Step(25, 2)], [b"0"]),
        (b"1.2", [Step(25, 2)], [b"5"]),
        (b"1.", [Step(25, 2)], [b"0"]),
        (b"1.13", [Step(25, 2)], []),
        (b"9", [Step(0, 0)], []),
        (b"9", [Step(10**13, 0)], []),
        (b"5", [Step(3, 0), Step(3, 0), Step(2, 0)], [b"1", b"0"]),
    ],
)
def test_the_fewest_digits_are_found(text: bytes, steps: list[Step], ways: list[bytes]) -> None:
    found = digits_to_multiple(text, steps)
    assert [way for way in found if len(way) == min(map(len, found))] == ways


def test_a_minimum_may_demand_more_of_them() -> None:
    assert digits_to_multiple(b"[", [Step(15, 0)])[:3] == [b"15", b"105", b"1005"]
    assert digits_to_multiple(b"1", [Step(25, 2)])[-1] == b".0"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 2000), st.integers(0, 2))
def test_they_make_multiples(whole: int, decimals: int, count: int, digits: int) -> None:
    text = str(whole) if not decimals else f"{whole}.{str(whole)[:decimals]}"
    for way in digits_to_multiple(f"[{text}".encode(), [Step(count, digits)]):
        assert (Fraction(text + way.decode()) / Fraction(count, 10**digits)).denominator == 1
