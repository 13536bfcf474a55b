"""The address of a server under test."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from slipstream.errors import UsageError

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base` is the path before /v1, without a slash at its end."""

    scheme: str
    host: str
    port: int
    base: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From http(s)://HOST[:PORT][/BASE][/v1]. Raises UsageError for anything else."""
        fix = "Give it as http://HOST:PORT."
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"is not an address: {error}.", where=repr(url), fix=fix) from error
        if parts.scheme not in _PORTS or not parts.hostname:
            raise UsageError("is not an http or https address.", where=repr(url), fix=fix)
        if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
            raise UsageError(
                "holds more than scheme, host, port and path.", where=repr(url), fix="Give a key with --api-key-file."
            )
        if not parts.path.isascii() or any(char <= " " for char in parts.path + parts.hostname):
            raise UsageError("holds characters that an address must escape.", where=repr(url), fix=fix)
        base = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, base)

    @property
    def authority(self) -> str:
        """HOST:PORT as the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def url(self, path: str = "") -> str:
        return f"{self.scheme}://{self.authority}{self.base}{path}"
