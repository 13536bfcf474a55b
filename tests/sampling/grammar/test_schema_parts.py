from __future__ import annotations

import pytest

from slipstream.sampling.grammar.schema_parts import References, parts

pytestmark = pytest.mark.fast

LEAF = {"type": "null"}


def test_parts_are_found_wherever_they_are() -> None:
    schema = {
        "properties": {"a": LEAF, "items": LEAF},
        "items": [LEAF, True],
        "not": LEAF,
        "anyOf": [LEAF, {"prefixItems": [LEAF]}],
        "$defs": {"d": {"additionalProperties": LEAF}},
        "enum": [{"properties": {"no": LEAF}}],
        "if": 3,
    }
    assert sorted(place for place, _ in parts(schema)) == [
        "#",
        "#/$defs/d",
        "#/$defs/d/additionalProperties",
        "#/anyOf/0",
        "#/anyOf/1",
        "#/anyOf/1/prefixItems/0",
        "#/items/0",
        "#/not",
        "#/properties/a",
        "#/properties/items",
    ]


def test_parts_may_be_nested_deeper_than_the_stack() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"not": schema}
    assert len(list(parts(schema))) == 5001
    assert list(parts(True)) == []


def test_references_lead_by_pointer_anchor_and_id() -> None:
    a, b, c = {"title": "a"}, {"$anchor": "bee"}, {"$id": "https://x/c", "$defs": {"d/e": {"title": "d"}}}
    schema = {"$defs": {"a": a, "b": b, "c": c, "e~f %": {"title": "e"}}, "anyOf": [a, b]}
    find = References(schema).find
    assert find("#") is schema
    assert find("#/$defs/a") is find("#/anyOf/0") is a
    assert find("#bee") is b
    assert find("https://x/c") is c
    assert find("https://x/c#/$defs/d~1e") == {"title": "d"}
    assert find("#/$defs/e~0f%20%25") == {"title": "e"}
    for nowhere in ("#/$defs/z", "#/anyOf/7", "#/anyOf/x", "#nobody", "https://y/", "#/$defs/a/title/b", 3, None):
        assert find(nowhere) is None
