"""`slipstream serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from slipstream.cli.options import engine_options, read_options
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.render import note, overruled
from slipstream.config.env import Environment
from slipstream.config.types import EngineOptions
from slipstream.engine.process.engine import ProcessEngine
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.protocol import EngineInfo
from slipstream.server.keys import read_keys
from slipstream.server.listen import bind, check_tls, read_password
from slipstream.server.options import LogFormat, ServerOptions
from slipstream.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # both take their time; they are imported when they are needed
    from slipstream.engine.async_engine import AsyncEngine

MAX_QUEUED = 1024
MAX_QUEUED_TOKENS = 1 << 18


@engine_options
def serve(
    model: Annotated[str, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")],
    *,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, Option(help="TCP port; 0 is any free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, Option(metavar="NAME", help="What clients call the model; may be given several times.")
    ] = None,
    api_keys: Annotated[
        Path | None, Option(metavar="FILE", help="API keys, one NAME SECRET per line (also: SLIPSTREAM_API_KEYS).")
    ] = None,
    key_concurrency: Annotated[int | None, Option(help="Open requests of one API key.")] = None,
    key_requests_per_minute: Annotated[float | None, Option(help="Requests per minute of one API key.")] = None,
    request_timeout: Annotated[
        float | None, Option(metavar="SECONDS", help="Longest that a request may take, and what it gets by default.")
    ] = None,
    drain_timeout: Annotated[float, Option(metavar="SECONDS", help="What running requests get after SIGTERM.")] = 30.0,
    max_body_bytes: Annotated[int, Option(help="Largest request body.")] = 8 << 20,
    header_timeout: Annotated[
        float, Option(metavar="SECONDS", help="In which all headers of a request must arrive.")
    ] = 10.0,
    body_timeout: Annotated[float, Option(metavar="SECONDS", help="In which its whole body must arrive.")] = 30.0,
    write_timeout: Annotated[
        float, Option(metavar="SECONDS", help="That a client may take nothing of what is ready for it.")
    ] = 30.0,
    keep_alive_timeout: Annotated[
        float, Option(metavar="SECONDS", help="After which a connection without a request is closed.")
    ] = 30.0,
    ping_interval: Annotated[
        float, Option(metavar="SECONDS", help="Between comments on a stream that is silent.")
    ] = 15.0,
    stream_buffer: Annotated[int, Option(help="Deltas that a slow client may be behind.")] = 1024,
    max_queued: Annotated[
        int | None, Option(help="Requests that may wait, 1024 by default; more are refused with 429.")
    ] = None,
    max_queued_tokens: Annotated[
        int | None, Option(help="Prompt tokens of the requests that may wait, 262144 by default.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, Option(metavar="ORIGIN", help="Web origin that may ask; may be given several times.")
    ] = None,
    tls_certificate: Annotated[Path | None, Option(metavar="FILE", help="Serve HTTPS with this certificate.")] = None,
    tls_key: Annotated[Path | None, Option(metavar="FILE", help="Its private key.")] = None,
    tls_key_password: Annotated[
        Path | None, Option(metavar="FILE", help="File with the password of an encrypted key.")
    ] = None,
    restart_engine: Annotated[
        bool, Option("--restart-engine/--no-restart-engine", help="Start the engine again after a crash or hang.")
    ] = True,
    in_process: Annotated[bool, Option("--in-process", help="Run the engine inside the server's process.")] = False,
    tool_parser: Annotated[
        str | None,
        Option(metavar="NAME", help="How the model writes tool calls: hermes, llama3, mistral, glm4 or glm45."),
    ] = None,
    log_format: Annotated[str, Option(help="text or json.")] = "text",
    otel_endpoint: Annotated[
        str | None, Option(metavar="URL", help="OpenTelemetry collector (OTLP over HTTP) for a trace per request.")
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Warnings only.")] = False,
    settings: Mapping[str, Any],
) -> None:
    """Serve the model over HTTP as OpenAI's API: /v1/completions, /v1/chat/completions and more (see docs/server.md).

    SIGTERM or Ctrl-C: no new requests, those under way end or reach the drain time-out, exit code 0.
    """
    bounds = {"max_queued": max_queued, "max_queued_tokens": max_queued_tokens}
    given = {name: value for name, value in bounds.items() if value is not None}
    options, environment = read_options(model, {**settings, **given})
    options = _bounded(options)
    server = ServerOptions(
        host=host,
        port=port,
        api_keys=read_keys(api_keys, environment.api_keys),
        key_concurrency=key_concurrency,
        key_requests_per_minute=key_requests_per_minute,
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        max_body_bytes=max_body_bytes,
        header_timeout=header_timeout,
        body_timeout=body_timeout,
        write_timeout=write_timeout,
        keep_alive_timeout=keep_alive_timeout,
        ping_interval=ping_interval,
        stream_buffer=stream_buffer,
        cors_origins=tuple(cors_origin or ()),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_key_password=None if tls_key_password is None else read_password(tls_key_password),
        log_format=cast(LogFormat, log_format),  # checked there
        otel_endpoint=otel_endpoint,
        tool_parser=tool_parser,
    )
    check_tls(server.tls_certificate, server.tls_key, server.tls_key_password)
    with bind(host, port) as listener:
        engine = _engine(options, environment, in_process=in_process, restart=restart_engine)
        _serve(engine, tuple(dict.fromkeys(served_model_name or [model])), server, listener, quiet=quiet)


def _serve(
    engine: AsyncEngine | ProcessEngine,
    names: tuple[str, ...],
    server: ServerOptions,
    listener: socket.socket,
    *,
    quiet: bool,
) -> None:
    from slipstream.server.context import ServerContext
    from slipstream.server.logs import configure_logging
    from slipstream.server.model import ServedModel
    from slipstream.server.run import serve as serve_http

    configure_logging(server.log_format, quiet=quiet)
    tokenizer, info = engine.tokenizer, engine.info
    assert tokenizer is not None
    served = ServedModel(names, tokenizer, info.max_model_len, info.vocab_size, int(time.time()))

    def on_listening(url: str) -> None:
        _say(_greeting(names, info, server, url), server.log_format, quiet=quiet)

    serve_http(ServerContext(engine, served, server), listener, on_listening=on_listening)


def _say(lines: list[tuple[int, str]], form: LogFormat, *, quiet: bool) -> None:
    """As lines of the log for machines, whose level is set, or as they stand for people."""
    for level, line in lines:
        if form == "json":
            logging.getLogger("slipstream.server").log(level, line)
        elif level == logging.WARNING:
            note(f"warning: {line}")
        elif not quiet:
            note(line)


def _bounded(options: EngineOptions) -> EngineOptions:
    """A server's queue has bounds, whether or not somebody set them: what waits for minutes is better refused."""
    scheduler = options.scheduler
    return replace(
        options,
        scheduler=replace(
            scheduler,
            max_queued=scheduler.max_queued or MAX_QUEUED,
            max_queued_tokens=scheduler.max_queued_tokens or MAX_QUEUED_TOKENS,
        ),
    )


def _engine(
    options: EngineOptions, environment: Environment, *, in_process: bool, restart: bool
) -> AsyncEngine | ProcessEngine:
    """Raises ConfigError, ModelError or InsufficientMemoryError."""
    if in_process:
        from slipstream.engine.async_engine import AsyncEngine

        return AsyncEngine.load(options, cache_dir=environment.cache_dir)

    def meanwhile() -> Tokenizer:
        """The other process is loading the model: the time to import the HTTP server in."""
        import slipstream.server.run  # noqa: F401
        from slipstream.engine.model_tokenizer import load_tokenizer

        return load_tokenizer(options, cache_dir=environment.cache_dir)

    return ProcessEngine(
        options,
        cache_dir=environment.cache_dir,
        process=ProcessSettings(restart=restart),
        tokenizer=meanwhile,
    )


def _greeting(names: tuple[str, ...], info: EngineInfo, server: ServerOptions, url: str) -> list[tuple[int, str]]:
    """Lines with their level of `logging`."""
    keys = len(server.api_keys)
    guarded = f"{keys} API key{'s' if keys > 1 else ''}" if keys else "no API key needed"
    return [
        *((logging.INFO, each) for each in overruled(info.decisions)),
        *((logging.WARNING, each) for each in info.warnings),
        (
            logging.INFO,
            f"{', '.join(names)}: {info.family}, context of {info.max_model_len} tokens, "
            f"loaded in {info.load_time:.2f} s, warmed up in {info.warm_up_time:.2f} s",
        ),
        (logging.INFO, f"{url} ({guarded}); the API is at {url}/v1, {url}/docs lists the routes"),
    ]
