"""API keys, before anything of the body is read."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.errors import SlipstreamError
from slipstream.server.errors import AuthenticationError
from slipstream.server.key_limits import KeyLimits
from slipstream.server.keys import ApiKey, find_key
from slipstream.server.refusals import refusal

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""Probes, the web page, which asks for the key itself, and what routes there are, which is the same for every server:
a browser that opens a page cannot send a key."""
OPEN_FOLDERS = ("/page/",)  # files of the web page


class Authentication:
    """Lets in who sends a known key as `Authorization: Bearer KEY` or `X-Api-Key: KEY`; without keys, everybody.

    The key's name is the tenant of the request. POST requests count against the key's limits while they are open.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[ApiKey], limits: KeyLimits) -> None:
        self._app = app
        self._keys = tuple(keys)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or _is_open(scope):
            await self._app(scope, receive, send)
            return
        try:
            name = self._name(Headers(scope=scope))
            scope["slipstream.tenant"] = name
            counted = scope["method"] == "POST"
            if counted:
                self._limits.enter(name)
        except SlipstreamError as error:
            await refusal(scope, error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if counted:
                self._limits.leave(name)

    def _name(self, headers: Headers) -> str:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not secret:
            raise AuthenticationError("an API key is needed.", fix="Send it as Authorization: Bearer KEY.")
        key = find_key(self._keys, secret)
        if key is None:
            raise AuthenticationError("the API key is not known.")
        return key.name


def _is_open(scope: Scope) -> bool:
    return scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_FOLDERS)
