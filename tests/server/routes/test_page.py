"""The page's files over HTTP."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from slipstream.server.keys import ApiKey
from slipstream.server.routes.page import read_page
from tests.server.serving import client_for, echo_app

pytestmark = pytest.mark.fast


def get(path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with client_for(echo_app(api_keys=(ApiKey.of("k", "secret"),))) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/page/style.css", "/page/icon.svg"])
def test_files_need_no_key_and_carry_the_security_headers(path: str) -> None:
    response = get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


def test_types() -> None:
    assert get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert get("/page/app.js").headers["content-type"].startswith("text/javascript")
    assert get("/page/icon.svg").headers["content-type"] == "image/svg+xml"


def test_an_unchanged_file_is_not_sent_again() -> None:
    etag = get("/page/app.js").headers["etag"]
    again = get("/page/app.js", {"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert get("/page/app.js", {"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/__init__.py", "/page/..%2Fapp.py", "/page/index.html"])
def test_nothing_else_is_served(path: str) -> None:
    assert get(path).status_code == 404


def test_everything_that_is_referred_to_exists_and_nothing_is_elsewhere() -> None:
    page = read_page()
    for name, file in page.items():
        text = file.body.decode()
        for target in re.findall(r"""(?:src|href)="/page/([^"]+)\"""", text):
            assert target in page, f"{name} refers to {target}"
        for target in re.findall(r"""from "\./([^"]+)";""", text):
            assert target in page, f"{name} imports {target}"
        hosts = set(re.findall(r"https?://[\w.-]+", text)) - {"http://www.w3.org"}
        assert not hosts, f"{name} names {hosts}"
        assert "innerHTML" not in text
        assert "eval(" not in text
