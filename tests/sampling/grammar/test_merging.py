from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.grammar.merging import (
    MAX_ALTERNATIVES,
    Merger,
    Step,
    StepTooLarge,
    TooManyAlternatives,
    step_of,
)

pytestmark = pytest.mark.fast


def optional(schema: dict[str, Any]) -> list[int]:
    return sorted(each.num_optional for each in Merger(schema).alternatives(schema))


def properties(*names: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"properties": dict.fromkeys(names, True), "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "counts"),
    [
        ({}, [0]),
        (properties("a", "b", "c", required=("b", "z")), [2]),
        ({**properties("a", "b"), "allOf": [properties("b", "c"), properties("d", required=("a",))]}, [3]),
        ({**properties("a"), "$ref": "#/$defs/x", "$defs": {"x": properties("b", "c")}}, [3]),
        ({**properties("a"), "anyOf": [properties("b"), properties("c", "d"), {"required": ["a"]}]}, [0, 2, 3]),
        ({"anyOf": [properties("a"), properties("b")], "oneOf": [properties("c"), properties("d")]}, [2, 2, 2, 2]),
        ({"allOf": [{"$ref": "#/$defs/x"}] * 2, "$defs": {"x": {"allOf": [properties("a")] * 3}}}, [1]),
        ({"anyOf": [{"const": i} for i in range(5000)]}, [0]),
        ({**properties("a"), "$ref": "#"}, [1]),
        ({"allOf": [{"$ref": "#/$defs/none"}, True, 3], "anyOf": []}, [0]),
        ({"properties": 3, "required": "a", "anyOf": 7}, [0]),
    ],
)
def test_parts_are_counted_together(schema: dict[str, Any], counts: list[int]) -> None:
    assert optional(schema) == counts


def test_combinations_are_bounded() -> None:
    ten = [{"anyOf": [properties(f"{i}{j}") for j in range(10)]} for i in range(4)]
    assert len(Merger({}).alternatives({"allOf": ten[:3]})) == 1000 <= MAX_ALTERNATIVES
    with pytest.raises(TooManyAlternatives):
        Merger({}).alternatives({"allOf": ten})
    with pytest.raises(TooManyAlternatives):
        Merger({}).alternatives({"anyOf": [{"required": [str(i)]} for i in range(MAX_ALTERNATIVES + 1)]})


def test_what_is_referred_to_again_and_again_is_merged_once() -> None:
    """2 ** 60 ways lead from the first to the last."""
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    defs["d60"] = properties("a", "b")
    assert optional({"$ref": "#/$defs/d0", "$defs": defs}) == [2]


@pytest.mark.parametrize(
    ("value", "step"),
    [
        (3, Step(3, 0)),
        (-3, Step(3, 0)),
        (2.50, Step(25, 1)),
        (0.001, Step(1, 3)),
        (100.0, Step(100, 0)),
        (0, Step(0, 0)),
        (1e-300, None),
        (2**32, None),
        (10**400, None),
        (1e300, None),
        (True, None),
        ("3", None),
        (None, None),
    ],
)
def test_steps_are_read_as_decimals(value: object, step: Step | None) -> None:
    assert step_of(value) == step


STEPS = st.tuples(st.integers(1, 60), st.integers(0, 2)).map(lambda step: step[0] / 10 ** step[1])


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=3))
def test_steps_that_come_together_have_their_least_common_multiple(values: list[float]) -> None:
    steps = [step_of(value) for value in values]
    if None in steps:
        return  # a fraction that no float is
    [merged] = Merger({}).alternatives({"allOf": [{"multipleOf": value} for value in values]})
    assert merged.step is not None
    exact = Fraction(lcm(*(round(value * 100) for value in values)), 100)
    assert Fraction(merged.step.count, 10**merged.step.digits) == exact
    assert merged.step.digits == 0 or merged.step.count % 10


def test_steps_that_llguidance_would_multiply_wrongly_are_found() -> None:
    """In 32 bits, and it would have followed another step without a word."""
    for steps in ([100_003, 100_019], [1e-8, 999_999], [1e-5, 70_001]):
        with pytest.raises(StepTooLarge):
            Merger({}).alternatives({"allOf": [{"multipleOf": step} for step in steps]})
    [merged] = Merger({}).alternatives({"allOf": [{"multipleOf": 0}, {"multipleOf": 3}]})
    assert merged.step == Step(0, 0)
