"""How request bodies are read: strictly, and unknown fields are refused by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.config.suggest import did_you_mean
from slipstream.server.errors import BadRequestError


class RequestModel(BaseModel):
    """No coercion: a number is a number, and NaN and infinity are none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is left at its first wrong item: bodies are large, and a million problems take a minute and gigabytes."""

_MOST_PROBLEMS = 100  # that are looked at

_TYPE_NAME = re.compile(r"(str|int|float|bool|none)$|(list|dict|constrained-\w+|function-\w+)(\[|$)")

Body = TypeVar("Body", bound=RequestModel)


def read_body(kind: type[Body], raw: bytes) -> Body:
    """Raises BadRequestError that names the first field that is wrong."""
    if not raw.strip():
        raise BadRequestError("the body is not valid JSON: it is empty.")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        if error.error_count() > _MOST_PROBLEMS:
            raise BadRequestError(
                f"the body has {error.error_count()} fields that are not known or have wrong values; "
                f"they are named one at a time if there are at most {_MOST_PROBLEMS}."
            ) from None
        raise _bad_request(kind, error.errors(include_url=False, include_context=False)) from error


def _bad_request(kind: type[RequestModel], problems: Sequence[Any]) -> BadRequestError:
    first = problems[0]
    if first["type"] == "json_invalid":
        return BadRequestError(f"the body is not valid JSON: {_sentence(first['msg'])}")
    # A field of several types has a problem with each of them; the deepest is the one with the type that was meant.
    same = [problem for problem in problems if problem["loc"][:1] == first["loc"][:1]]
    problem = max(same, key=lambda each: len(each["loc"]))
    path, loc = _path(problem["loc"]), problem["loc"]
    if problem["type"] == "extra_forbidden":
        near = did_you_mean(str(loc[-1]), tuple(kind.model_fields)) if len(loc) == 1 else None
        return BadRequestError("is not a field that this server knows.", param=path, fix=near)
    shown = "" if problem["type"] == "missing" else repr(problem.get("input"))
    given = f", got {shown if len(shown) <= 100 else shown[:100] + '...'}" if shown else ""
    return BadRequestError(f"{problem['msg'][:1].lower()}{problem['msg'][1:]}{given}.", param=path)


def _path(loc: Sequence[str | int]) -> str | None:
    """("messages", 0, "content", "str") -> "messages[0].content": names of types that were tried are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _TYPE_NAME.match(part):
            path += f".{part}" if path else part
    return path or None


def _sentence(text: str) -> str:
    text = text.removeprefix("Invalid JSON: ")
    return text if text.endswith(".") else f"{text}."


def given_fields(body: RequestModel, names: Sequence[str]) -> list[str]:
    """Those of `names` that the request states and that are not null."""
    return [name for name in names if name in body.model_fields_set and getattr(body, name) is not None]
