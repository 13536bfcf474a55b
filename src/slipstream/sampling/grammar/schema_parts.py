"""Where a JSON schema holds further schemas, and where its references lead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

# One, a list of them, or a mapping of names to them.
SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPPINGS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object among the schemas in `schema`, itself included, with the JSON pointer to it; however deep."""
    places = [("#", schema)]
    while places:
        place, each = places.pop()
        if not isinstance(each, dict):
            continue
        yield place, each
        for name in SINGLE:
            value = each.get(name)
            if isinstance(value, list):
                places += [(f"{place}/{name}/{i}", item) for i, item in enumerate(value)]
            else:
                places.append((f"{place}/{name}", value))
        for name in LISTS:
            value = each.get(name)
            if isinstance(value, list):
                places += [(f"{place}/{name}/{i}", item) for i, item in enumerate(value)]
        for name in MAPPINGS:
            value = each.get(name)
            if isinstance(value, dict):
                places += [(f"{place}/{name}/{key}", item) for key, item in value.items()]


class References:
    """The schemas that `$ref` can name: by a JSON pointer, by `$anchor`, or by `$id`."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._named: dict[str, Any] = {}
        for _, each in parts(schema):
            for key, mark in (("$id", ""), ("id", ""), ("$anchor", "#")):
                if isinstance(each.get(key), str):
                    self._named.setdefault(mark + each[key], each)

    def find(self, ref: object) -> Any:
        """None for one that leads nowhere or out of the schema."""
        if not isinstance(ref, str):
            return None
        if ref in self._named:
            return self._named[ref]
        base, mark, pointer = ref.partition("#")
        found = self._named.get(base.rstrip("#"), None) if base else self._root
        if not mark or (pointer and not pointer.startswith("/")):
            return None
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found
