"""From a GrammarSpec to what llguidance reads, with what is known of its schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from slipstream.sampling.grammar.bounds import bound_schema
from slipstream.sampling.grammar.limits import schema_fault
from slipstream.sampling.grammar.merging import Step, steps_in
from slipstream.sampling.grammar.refusals import GrammarRefused
from slipstream.sampling.grammar.spec import GrammarSpec

UNFORCED = '\n%llguidance {"no_forcing": true}\n'
"""Without it llguidance follows text that has no alternative to its end before every mask, in no bounded time."""

_JSON = "%json"
_ASCII_DIGITS = "d"  # \d is 0 to 9, as in the patterns of JSON schemas, and not every script's digits


class GrammarSource(NamedTuple):
    text: str
    steps: tuple[Step, ...] = ()  # what numbers have to be multiples of


def grammar_source(spec: GrammarSpec) -> GrammarSource:
    """Raises GrammarRefused for a source that is not even well-formed, or a schema that cannot be followed."""
    from llguidance import grammar_from, regex_to_lark

    try:
        if spec.kind == "json_object":
            return _schema_source({"type": "object"}, bounded=spec.bounded)
        if spec.kind == "json_schema":
            return _schema_source(_read_schema(spec.source), bounded=spec.bounded)
        if spec.kind == "regex":
            return GrammarSource(f"start: /{regex_to_lark(spec.source, _ASCII_DIGITS)}/{UNFORCED}")
        if spec.kind == "choice":  # as one terminal: a rule of thousands of them is over llguidance's limits
            choices = " | ".join(json.dumps(each) for each in json.loads(spec.source))
            return GrammarSource(f"start: CHOICE\nCHOICE: {choices}{UNFORCED}")
        steps: list[Step] = []
        for line, schema in _schemas_within(spec.source):
            steps += _checked(schema, f"{line}(1): ")
        return GrammarSource(grammar_from("grammar", spec.source) + UNFORCED, tuple(dict.fromkeys(steps)))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarRefused(str(error)) from error


def _schema_source(schema: Any, *, bounded: bool) -> GrammarSource:
    from llguidance import LLMatcher

    steps = _checked(schema)
    built = LLMatcher.grammar_from_json_schema(
        json.dumps(bound_schema(schema) if bounded else schema),
        overrides={"whitespace_flexible": False} if bounded else {},
    )
    [grammar] = json.loads(built)["grammars"]
    return GrammarSource(f"start: {_JSON} {json.dumps(grammar['json_schema'])}{UNFORCED}", steps)


def _checked(schema: Any, where: str = "") -> tuple[Step, ...]:
    fault = schema_fault(schema)
    if fault is not None:
        raise GrammarRefused(where + fault)
    return steps_in(schema)


def _read_schema(source: str) -> Any:
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise GrammarRefused(f"it is not JSON: {error}") from error
    if not isinstance(schema, (dict, bool)):
        raise GrammarRefused(f"a schema is an object, not {type(schema).__name__}")
    return schema


def _schemas_within(source: str) -> Iterator[tuple[int, Any]]:
    """The schemas in a Lark grammar, with their lines. What is no JSON there is for llguidance to judge."""
    decoder = json.JSONDecoder()
    at = source.find(_JSON)
    while at >= 0:
        begin = at + len(_JSON)
        begin += len(source[begin:]) - len(source[begin:].lstrip())
        try:
            schema, end = decoder.raw_decode(source, begin)
        except ValueError:
            end = begin
        else:
            yield source.count("\n", 0, at) + 1, schema
        at = source.find(_JSON, end)
