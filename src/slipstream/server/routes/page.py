"""The web page at / and its files under /page/. No key is needed: there is nothing in them but the page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from slipstream.server.errors import BadRequestError, error_body

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str


def read_page() -> dict[str, PageFile]:
    """Every file of the page by name."""
    found = {}
    for each in files("slipstream.server.page").iterdir():
        media_type = TYPES.get("." + each.name.rpartition(".")[2])
        if media_type is not None:
            body = each.read_bytes()
            found[each.name] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found


def make_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    page = read_page()

    @router.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, page["index.html"])

    @router.get("/page/{name}")
    async def page_file(request: Request, name: str) -> Response:
        if name not in page or name == "index.html":
            missing = BadRequestError(f"the page has no file {name!r:.100}.", param="name")
            return Response(msgspec.json.encode(error_body(missing)), 404, media_type="application/json")
        return _answer(request, page[name])

    return router


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**SECURITY_HEADERS, "ETag": file.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
