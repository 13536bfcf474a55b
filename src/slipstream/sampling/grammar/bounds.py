"""Bounds for JSON schemas that set none, so that a model stuck in a loop cannot fill its whole budget.

They are far from what a sensible answer reaches. A schema's own limits are left as they are, larger ones too.
"""

from __future__ import annotations

from typing import Any

from slipstream.sampling.grammar.schema_parts import LISTS, MAPPINGS, SINGLE

MAX_ITEMS = 256  # of an array without maxItems
MAX_LENGTH = 4096  # characters of a string without maxLength
MAX_DIGITS = 20  # consecutive digits of a number; 17 give every float64

# A string with one of these has a form of its own, which says how long it is.
_SHAPED = ("enum", "const", "pattern", "format", "maxLength", "$ref")


def bound_schema(schema: Any) -> Any:
    """A copy in which every unbounded string and array has a limit. Raises RecursionError if it is nested too deeply.

    Objects are bounded by the properties they name; where a schema allows arbitrary ones, only the token budget ends
    them.
    """
    if not isinstance(schema, dict):
        return schema
    bounded = dict(schema)
    for name in SINGLE:
        if name in bounded:
            value = bounded[name]
            bounded[name] = [bound_schema(each) for each in value] if isinstance(value, list) else bound_schema(value)
    for name in LISTS:
        if isinstance(bounded.get(name), list):
            bounded[name] = [bound_schema(each) for each in bounded[name]]
    for name in MAPPINGS:
        if isinstance(bounded.get(name), dict):
            bounded[name] = {key: bound_schema(each) for key, each in bounded[name].items()}
    types = bounded.get("type")
    named = types if isinstance(types, list) else [types]
    if "string" in named and not any(key in bounded for key in _SHAPED):
        bounded["maxLength"] = max(MAX_LENGTH, _least(bounded.get("minLength")))
    if "array" in named and not any(key in bounded for key in ("maxItems", "enum", "const", "$ref")):
        bounded["maxItems"] = max(MAX_ITEMS, _least(bounded.get("minItems")))
    return bounded


def _least(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class DigitRun:
    """Length of the run of digits that ends a JSON text, outside of strings; fed byte by byte."""

    def __init__(self) -> None:
        self.length = 0
        self._in_string = False
        self._escaped = False

    def push(self, data: bytes) -> None:
        for byte in data:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif byte == 0x5C:  # a backslash
                    self._escaped = True
                elif byte == 0x22:  # a quotation mark
                    self._in_string = False
            elif 0x30 <= byte <= 0x39:
                self.length += 1
            else:
                self._in_string = byte == 0x22
                self.length = 0
