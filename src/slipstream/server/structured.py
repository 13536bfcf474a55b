"""What a request says about the form of its answer: `response_format`, `structured_outputs`, `guided_*`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.server.errors import BadRequestError

_FORMATS = ("text", "json_object", "json_schema", "regex", "grammar", "choice")
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")


class Structured(Protocol):
    """The fields that are read; `schema.common.SharedFields` has them."""

    @property
    def response_format(self) -> dict[str, Any] | None: ...
    @property
    def structured_outputs(self) -> dict[str, Any] | None: ...
    @property
    def guided_json(self) -> dict[str, Any] | str | None: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...


def grammar_of(body: Structured) -> GrammarSpec | None:
    """None where any text will do. Raises BadRequestError or InvalidParamsError that names the field.

    Whether a schema or a grammar is sound the engine finds out, which refuses the request then.
    """
    found: dict[str, GrammarSpec] = {}
    if body.response_format is not None:
        spec = _response_format(body.response_format)
        if spec is not None:
            found["response_format"] = spec
    if body.structured_outputs is not None:
        found["structured_outputs"] = _structured_outputs(body.structured_outputs)
    guided: dict[str, tuple[Callable[[Any], GrammarSpec], object]] = {
        "guided_json": (GrammarSpec.json_schema, body.guided_json),
        "guided_regex": (GrammarSpec.regex, body.guided_regex),
        "guided_choice": (GrammarSpec.choice, body.guided_choice),
        "guided_grammar": (GrammarSpec.grammar, body.guided_grammar),
    }
    for name, (make, content) in guided.items():
        if content is not None:
            found[name] = _made(make, content, name)
    if len(found) > 1:
        raise BadRequestError(f"does not go together with {', '.join(list(found)[:-1])}.", param=list(found)[-1])
    return next(iter(found.values()), None)


def _response_format(value: Mapping[str, Any]) -> GrammarSpec | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec.json_object()
    if kind == "json_schema":
        return schema_format(value.get("json_schema"), "response_format.json_schema")
    if kind in ("regex", "grammar", "choice"):
        content = value.get(kind)
        if content is None:
            raise BadRequestError("is missing.", param=f"response_format.{kind}")
        return _extension(kind, content, f"response_format.{kind}")
    raise BadRequestError(f"must be one of {', '.join(_FORMATS)}, got {kind!r:.80}.", param="response_format.type")


def schema_format(value: object, where: str) -> GrammarSpec:
    """{"name": ..., "schema": {...}, "strict": ...}; a schema is always kept to, strict or not."""
    if not isinstance(value, Mapping):
        raise BadRequestError("must be an object with name and schema.", param=where)
    schema = value.get("schema")
    if not isinstance(schema, Mapping):
        raise BadRequestError("must be a JSON schema.", param=f"{where}.schema")
    return _made(GrammarSpec.json_schema, schema, f"{where}.schema")


def _structured_outputs(value: Mapping[str, Any]) -> GrammarSpec:
    given = {name: each for name, each in value.items() if each not in (None, False)}
    for name in value:
        if name not in _STRUCTURED:
            raise BadRequestError(f"must be one of {', '.join(_STRUCTURED)}.", param=f"structured_outputs.{name}")
    if len(given) != 1:
        raise BadRequestError(f"must have exactly one of {', '.join(_STRUCTURED)}.", param="structured_outputs")
    [(name, content)] = given.items()
    if name == "json_object":
        return GrammarSpec.json_object()
    return _extension(name, content, f"structured_outputs.{name}")


def _extension(name: str, content: Any, where: str) -> GrammarSpec:
    if name == "json":
        if not isinstance(content, str | Mapping):
            raise BadRequestError("must be a JSON schema.", param=where)
        return _made(GrammarSpec.json_schema, content, where)
    if name == "choice":
        return _made(GrammarSpec.choice, content, where)
    if not isinstance(content, str):
        raise BadRequestError("must be a string.", param=where)
    return _made(GrammarSpec.regex if name == "regex" else GrammarSpec.grammar, content, where)


def _made(make: Callable[[Any], GrammarSpec], content: object, where: str) -> GrammarSpec:
    """Errors, those of the engine too, name the field that was sent."""
    try:
        return make(content).named(where)
    except InvalidParamsError as error:
        raise InvalidParamsError(error.what, where=where, fix=error.fix) from error
