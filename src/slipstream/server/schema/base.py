"""How request bodies are read: strictly, and unknown fields are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from slipstream.config.suggest import did_you_mean
from slipstream.server.errors import BadRequestError


class RequestModel(BaseModel):
    """No coercion: a number is a number, and NaN and infinity are none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Body = TypeVar("Body", bound=RequestModel)


def read_body(kind: type[Body], raw: bytes) -> Body:
    """Raises BadRequestError that names the first field that is wrong."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first, *others = error.errors(include_url=False, include_context=False)
        more = f" ({len(others)} more problems.)" if others else ""
        raise _bad_request(kind, first, more) from error


def _bad_request(kind: type[RequestModel], problem: Any, more: str) -> BadRequestError:
    path = ".".join(str(part) for part in problem["loc"]) or None
    if problem["type"] == "json_invalid":
        return BadRequestError(f"the body is not valid JSON: {_sentence(problem['msg'])}")
    if problem["type"] == "extra_forbidden":
        name = str(problem["loc"][-1])
        near = did_you_mean(name, tuple(kind.model_fields)) if len(problem["loc"]) == 1 else None
        return BadRequestError("is not a field that this server knows.", param=path, fix=f"{near or ''}{more}" or None)
    shown = repr(problem.get("input"))
    given = f", got {shown if len(shown) <= 100 else shown[:100] + '...'}" if problem["type"] != "missing" else ""
    return BadRequestError(f"{problem['msg'].lower()}{given}.", param=path, fix=more.strip() or None)


def _sentence(text: str) -> str:
    text = text.removeprefix("Invalid JSON: ")
    return text if text.endswith(".") else f"{text}."


def given_fields(body: RequestModel, names: Sequence[str]) -> list[str]:
    """Those of `names` that the request states and that are not null."""
    return [name for name in names if name in body.model_fields_set and getattr(body, name) is not None]
