from __future__ import annotations

from typing import Any

import pytest

from slipstream.sampling.grammar.limits import MAX_OPTIONAL, MAX_STEP_STATES, schema_fault

pytestmark = pytest.mark.fast


def some(count: int, prefix: str = "p", required: int = 0) -> dict[str, Any]:
    names = [f"{prefix}{i}" for i in range(count)]
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names[:required]}


@pytest.mark.parametrize(
    ("schema", "place", "count"),
    [
        (some(401), "#", 401),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, some(1000)]}}}, "#/properties/a/anyOf/1", 1000),
        ({"allOf": [some(300, "a"), some(300, "b")]}, "#", 600),
        ({"items": {"$ref": "#/$defs/d", **some(300, "a")}, "$defs": {"d": some(300, "b")}}, "#/items", 600),
        ({"anyOf": [some(30, f"{i}p") for i in range(40)]}, "#", 1200),
        ({"allOf": [{"anyOf": [some(300, "b"), {"type": "null"}]}, some(200, "a")]}, "#", 700),
    ],
)
def test_optional_properties_that_come_together_are_counted_together(
    schema: dict[str, Any], place: str, count: int
) -> None:
    """Those behind allOf, $ref and anyOf were not: such a schema was accepted and failed on the way."""
    fault = schema_fault(schema)
    assert fault is not None
    assert fault.startswith(f"the object at {place} has {count} optional properties")
    assert ("included" in fault) == (place == "#/items" or bool({"allOf", "anyOf"} & schema.keys()))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        some(MAX_OPTIONAL),
        some(1000, required=600),
        {"allOf": [some(300), some(300)]},
        {"allOf": [some(400), {"required": ["p1"]}], **some(401, required=1)},
        {"properties": {f"q{i}": some(300) for i in range(10)}},
        {"anyOf": [{**some(30, f"{i}p", required=1)} for i in range(40)]},
        {"enum": [{f"p{i}": i for i in range(500)}]},
        {"type": "integer", "multipleOf": MAX_STEP_STATES},
        {"type": "number", "multipleOf": 0.01},
        {"allOf": [{"multipleOf": 6}, {"multipleOf": 0.5}]},
        {"anyOf": [{"const": f"c{i}"} for i in range(4000)]},
    ],
)
def test_what_is_within_the_limits_passes(schema: Any) -> None:
    assert schema_fault(schema) is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "integer", "multipleOf": 9973}}}, "#/properties/a"),
        ({"multipleOf": 0.0009973}, "#"),
        ({"items": {"multipleOf": 0.07}}, "#/items"),
        ({"multipleOf": 10**400}, "#"),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 89}]}, "#"),
        ({"anyOf": [{"multipleOf": 900}, {"multipleOf": 899}]}, "#"),
        ({"multipleOf": 97, "$ref": "#/$defs/d", "$defs": {"d": {"multipleOf": 89}}}, "#"),
    ],
)
def test_multiples_that_could_not_be_followed_are_refused(schema: dict[str, Any], place: str) -> None:
    fault = schema_fault(schema)
    assert fault is not None
    assert fault.startswith(f"multipleOf at {place}")


@pytest.mark.parametrize("multiple", [0, -1, -0.5, 0.0])
def test_multiples_are_above_zero(multiple: float) -> None:
    assert schema_fault({"multipleOf": multiple}) == f"multipleOf at # must be above 0, not {multiple}"


def test_multiples_that_llguidance_would_multiply_wrongly_are_refused() -> None:
    fault = schema_fault({"properties": {"a": {"allOf": [{"multipleOf": 1e-8}, {"multipleOf": 999}]}}})
    assert fault == ("the multipleOf that come together at #/properties/a have no common multiple that is small enough")


def test_combinations_are_refused() -> None:
    wide = [{"anyOf": [some(1, f"x{i}y{j}") for j in range(20)]} for i in range(3)]
    fault = schema_fault({"items": {"allOf": wide}})
    assert fault is not None
    assert "what anyOf and oneOf allow at #/items comes to more than 1024 alternatives" in fault
