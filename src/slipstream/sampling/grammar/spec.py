"""What an answer must look like: the frozen description that travels with a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, get_args

from slipstream.config.suggest import did_you_mean
from slipstream.errors import InvalidParamsError
from slipstream.lean import dataclass
from slipstream.sampling.checks import refuse

GrammarKind = Literal["json_schema", "json_object", "regex", "grammar", "choice"]

MAX_SOURCE = 1 << 18  # characters
MAX_CHOICES = 4096


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar. `source` is text, so that equal grammars compare equal and cross a wire as they are.

    json_schema: a JSON Schema, as JSON. json_object: any JSON object; no source. regex: a regular expression that the
    whole answer matches. grammar: Lark with llguidance's extensions, or GBNF. choice: a JSON list of strings.
    `bounded` gives strings and arrays of a schema limits where it sets none, cuts runs of digits, and allows no
    whitespace between JSON tokens, so that a model cannot wander to the end of its budget; see `bounds`. `closing`
    completes the answer when tokens run out; without it the answer is cut off there. `fields`: what errors name instead
    of the kind, for every line of the source; the last stands for the lines behind it, too.

    Checked at construction: InvalidParamsError. Whether the source is a sound grammar is found out by the compiler.
    """

    kind: GrammarKind
    source: str = ""
    bounded: bool = True
    closing: bool = True
    fields: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            refuse("grammar.kind", "one of " + ", ".join(get_args(GrammarKind)), self.kind)
        if not isinstance(self.source, str):
            refuse("grammar.source", "a string", self.source)
        if len(self.source) > MAX_SOURCE:
            refuse("grammar.source", f"at most {MAX_SOURCE} characters long", f"{len(self.source)} characters")
        if (self.kind == "json_object") != (not self.source):
            rule = "empty for json_object" if self.kind == "json_object" else f"a non-empty {self.kind}"
            refuse("grammar.source", rule, self.source)
        for name in ("bounded", "closing"):
            if not isinstance(getattr(self, name), bool):
                refuse(f"grammar.{name}", "true or false", getattr(self, name))

    def named(self, *fields: str) -> GrammarSpec:
        """The same grammar, by the names that whoever asked knows it by."""
        return replace(self, fields=fields)

    def name_of(self, line: int | None = None) -> str:
        """Of a line of the source, counted from 1; without it, or without `fields`, of the whole."""
        return self.fields[min(line or 1, len(self.fields)) - 1] if self.fields else self.kind

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, bounded: bool = True) -> GrammarSpec:
        """From a decoded schema, or its JSON text. The order of its properties is that of the answer."""
        if isinstance(schema, str):
            return cls("json_schema", schema, bounded)
        if not isinstance(schema, (Mapping, bool)):
            refuse("json_schema", "an object", schema)
        return cls("json_schema", _dump("json_schema", schema), bounded)

    @classmethod
    def json_object(cls) -> GrammarSpec:
        return cls("json_object")

    @classmethod
    def regex(cls, pattern: str) -> GrammarSpec:
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, source: str) -> GrammarSpec:
        return cls("grammar", source)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> GrammarSpec:
        rule = f"a list of 1 to {MAX_CHOICES} different non-empty strings"
        if isinstance(choices, str | bytes) or not isinstance(choices, Sequence):
            refuse("choice", rule, choices)
        if not all(isinstance(each, str) and each for each in choices):
            refuse("choice", rule, choices)
        if not 1 <= len(choices) <= MAX_CHOICES or len(set(choices)) != len(choices):
            refuse("choice", rule, choices)
        return cls("choice", _dump("choice", list(choices)))

    @classmethod
    def from_value(cls, value: object) -> GrammarSpec:
        """A GrammarSpec as it is, or decoded JSON or TOML: an object with kind, source, bounded and closing."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            refuse("grammar", "a GrammarSpec or an object with kind and source", value)
        known = ["kind", "source", "bounded", "closing"]
        for name in value:
            if name not in known:
                raise InvalidParamsError(
                    "is not a field of a grammar.", where=f"grammar.{name}", fix=did_you_mean(str(name), known)
                )
        if "kind" not in value:
            refuse("grammar.kind", "given", None)
        return cls(**value)


def _dump(field: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        refuse(field, "JSON-like data without NaN, infinities or cycles", value)
