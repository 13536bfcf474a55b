"""GET /docs: the routes and their fields as one page of plain HTML, written from the OpenAPI document.

FastAPI's own page loads its program from another site; this one works without a network and without scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 0; font-size: 1.1rem; }
code, td:first-child { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; margin: .5rem 0; width: 100%; }
td, th { border-top: 1px solid #8884; padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top; }
"""
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    return HTMLResponse(docs_page(request.app.openapi()), headers=_HEADERS)


def docs_page(document: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI 3.1 document: one section per operation, one row per field of its body."""
    schemas = document.get("components", {}).get("schemas", {})
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    sections = "".join(
        _section(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>The machine-readable form is <code>/openapi.json</code>.</p>{sections}</html>"
    )


def _section(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    text = escape(operation.get("description") or operation.get("summary", ""))
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    rows = "".join(_rows(content.get("schema", {}), schemas))
    table = f"<table><tr><th>field<th>type<th>default</tr>{rows}</table>" if rows else ""
    return f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{text}</p>{table}</section>"


def _rows(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    body = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = body.get("required", ())
    fields = body.get("properties", {}).items()
    for name, field in sorted(fields, key=lambda item: item[0] not in required):
        default = "required" if name in required else _default(field)
        yield f"<tr><td>{escape(name)}<td>{escape(_kind(field))}<td>{escape(default)}</tr>"


def _default(field: Mapping[str, Any]) -> str:
    """As JSON; nothing where leaving the field out is not the same as giving some value."""
    value = field.get("default")
    return "" if value is None else json.dumps(value)


def _kind(field: Mapping[str, Any]) -> str:
    """ "integer", "list of string", "string or list of string"; null is left out."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        kinds = [_kind(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(map(repr, field["enum"]))
    if "const" in field:
        return repr(field["const"])
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))
