"""What the exit code of `slipstream` says. Errors carry theirs as `SlipstreamError.exit_code`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    MODEL = 3
    REQUEST = 4
    RESOURCES = 5
    DOWNLOAD = 6
    ENGINE = 7
    ADDRESS = 8
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.UNEXPECTED: "unexpected error",
    ExitCode.USAGE: "wrong option or configuration",
    ExitCode.MODEL: "model missing, damaged or not supported",
    ExitCode.REQUEST: "a request is invalid or does not fit",
    ExitCode.RESOURCES: "not enough memory or disk space",
    ExitCode.DOWNLOAD: "download failed",
    ExitCode.ENGINE: "the engine stopped",
    ExitCode.ADDRESS: "the address to listen on is in use or not to be had",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.OUTPUT_CLOSED: "the reader of the output went away",
}


def summary() -> str:
    """All codes on one line, for the end of a help text."""
    return "Exit codes: " + ", ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
