"""Log lines for people or for machines, on stderr."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import msgspec

from slipstream.server.options import LogFormat

FIELDS = ("request_id", "tenant", "method", "path", "status", "seconds")


class TextFormatter(logging.Formatter):
    """2026-01-02 03:04:05 INFO POST /v1/completions 200 (0.1234 s, id abc)."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = f"{stamp} {record.levelname} {record.getMessage()}"
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            tenant = getattr(record, "tenant", None)
            key = f", key {tenant}" if tenant else ""
            text += f" ({getattr(record, 'seconds', 0.0):.4f} s{key}, id {request_id})"
        return _one_line(text) + self._trace(record)

    def _trace(self, record: logging.LogRecord) -> str:
        return "\n" + self.formatException(record.exc_info) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """One object per line: time (seconds since the epoch), level, logger, message, and what a request has."""

    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        data.update({name: value for name in FIELDS if (value := getattr(record, name, None)) is not None})
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(data).decode()


def configure_logging(form: LogFormat, *, stream: TextIO | None = None, quiet: bool = False) -> None:
    """One handler for the loggers of Slipstream and of uvicorn, whose remarks on its own start are left out."""
    level = logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name, least in (("slipstream", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False


def _one_line(text: str) -> str:
    """What a client sent can neither forge a second line nor command the terminal that shows it."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
