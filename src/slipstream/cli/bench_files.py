"""Result files of the `bench` verbs."""

from __future__ import annotations

from pathlib import Path

from slipstream.errors import UsageError


def check_writable(path: Path | None) -> None:
    """Before a long measurement: raises UsageError if `path` can be no file."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError("is a folder.", where=str(path), fix="Name a file.")
    if not path.parent.is_dir():
        raise UsageError("there is no such folder.", where=str(path.parent))


def write_result(path: Path, data: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data + b"\n")
    partial.replace(path)
