"""The OpenAPI document, with the bodies that routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from slipstream.server.schema.base import RequestModel

_TEMPLATE = "#/components/schemas/{model}"


def install_openapi(app: FastAPI) -> None:
    """Makes `app.openapi()` name the schemas of all bodies that are `documented`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for kind in _body_kinds(RequestModel):
                own = kind.model_json_schema(ref_template=_TEMPLATE)
                schemas.update(own.pop("$defs", {}))
                schemas[kind.__name__] = own
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _body_kinds(base: type[RequestModel]) -> list[type[RequestModel]]:
    found = [base, *base.__subclasses__()]
    for kind in base.__subclasses__():
        found += _body_kinds(kind)
    return list(dict.fromkeys(found))
