"""Settings of the HTTP server, apart from those of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from slipstream.errors import ConfigError
from slipstream.server.keys import ApiKey

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 1000
MAX_LOGIT_BIAS_TOKENS = 4096
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 18  # as many as the largest vocabularies have

TOOL_PARSERS = ("hermes", "llama3", "mistral", "glm4", "glm45")

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Checked at construction; raises ConfigError naming the field. Times in seconds, None: no limit."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    max_body_bytes: int = 8 << 20
    header_timeout: float = 10.0  # for all headers of a request to arrive
    body_timeout: float = 30.0  # for the whole body to arrive
    write_timeout: float = 30.0  # that a client may take nothing of what is ready for it
    keep_alive_timeout: float = 30.0  # of a connection without a request
    stream_buffer: int = 1024  # deltas that wait for a slow client before its request is aborted
    ping_interval: float = 15.0  # between comments on a silent stream, so that a dead peer is noticed
    drain_timeout: float = 30.0  # that running requests get after SIGTERM
    request_timeout: float | None = None  # of requests that state none; also the longest that they may state
    max_n: int = 128
    max_logprobs: int = 20
    max_prompts: int = 256  # in one completions request
    api_keys: tuple[ApiKey, ...] = field(default=(), repr=False)  # none: everybody may ask
    key_concurrency: int | None = None  # open requests of one API key
    key_requests_per_minute: float | None = None
    cors_origins: tuple[str, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    log_format: LogFormat = "text"
    tool_parser: str | None = None  # how the model writes tool calls; None: as its chat template tells
    otel_endpoint: str | None = None  # URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace per request

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"must be from 0 to 65535, got {self.port}.", where="port")
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"must be text or json, got {self.log_format!r}.", where="log_format")
        if self.tool_parser is not None and self.tool_parser not in TOOL_PARSERS:
            raise ConfigError(
                f"must be one of {', '.join(TOOL_PARSERS)}, got {self.tool_parser!r}.", where="tool_parser"
            )
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not (value > 0 or (value == 0 and each.name in _ZERO_ALLOWED)):
                raise ConfigError(f"must be above 0, got {value}.", where=each.name)
        if not self.api_keys and not (self.key_concurrency is None and self.key_requests_per_minute is None):
            raise ConfigError("limits of API keys need API keys.", where="key_concurrency, key_requests_per_minute")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("needs the certificate and the key.", where="tls_certificate, tls_key")
        if self.tls_key_password is not None and self.tls_key is None:
            raise ConfigError("is of no use without tls_key.", where="tls_key_password")

    def shown(self) -> dict[str, object]:
        """As JSON, without secrets."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _SECRET}
        shown = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        return {**shown, "api_keys": len(self.api_keys)}

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"


_SECRET = frozenset({"tls_key_password", "api_keys"})
_ZERO_ALLOWED = frozenset({"port", "drain_timeout"})
