from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling.grammar.bounds import MAX_ITEMS, MAX_LENGTH, DigitRun, bound_schema

pytestmark = pytest.mark.fast


def test_unbounded_strings_and_arrays_get_limits_wherever_they_are() -> None:
    string, array = {"type": "string"}, {"type": "array", "items": {"type": ["string", "null"]}}
    schema = {
        "properties": {"a": string, "maxLength": string},
        "additionalProperties": array,
        "anyOf": [array, True],
        "prefixItems": [string],
        "$defs": {"d": {"not": string}},
    }
    bounded_string = {"type": "string", "maxLength": MAX_LENGTH}
    bounded_array = {
        "type": "array",
        "items": {"type": ["string", "null"], "maxLength": MAX_LENGTH},
        "maxItems": MAX_ITEMS,
    }
    before = json.dumps(schema)
    assert bound_schema(schema) == {
        "properties": {"a": bounded_string, "maxLength": bounded_string},
        "additionalProperties": bounded_array,
        "anyOf": [bounded_array, True],
        "prefixItems": [bounded_string],
        "$defs": {"d": {"not": bounded_string}},
    }
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 100_000},
        {"type": "string", "pattern": "a*"},
        {"type": "string", "enum": ["a"]},
        {"type": "string", "format": "date"},
        {"type": "array", "maxItems": 9999},
        {"type": "integer"},
        {"enum": [{"type": "string"}]},
        True,
    ],
)
def test_a_schema_s_own_limits_stay(schema: object) -> None:
    assert bound_schema(schema) == schema


def test_limits_never_contradict_a_minimum() -> None:
    assert bound_schema({"type": "string", "minLength": 5000})["maxLength"] == 5000
    assert bound_schema({"type": "array", "minItems": 300})["maxItems"] == 300


@settings(max_examples=60, deadline=None)
@given(st.text('12"\\, a'), st.integers(0, 6))
def test_digits_in_strings_do_not_count(inside: str, trailing: int) -> None:
    run = DigitRun()
    text = json.dumps({"k": inside}) + "," + "7" * trailing
    for byte in text.encode():
        run.push(bytes([byte]))
    whole = DigitRun()
    whole.push(text.encode())
    assert run.length == whole.length == trailing
