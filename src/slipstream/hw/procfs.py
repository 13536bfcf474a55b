"""Reads of /proc and /sys text files. Every reader takes the root folder, so that tests can bring their own."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Contents, or None where the kernel or a container does not show the file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_fields(text: str) -> dict[str, str]:
    """First value of every `key: value` line."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    return fields


def kilobytes(value: str | None) -> int | None:
    """Bytes of a value like "123 kB"."""
    number = (value or "").split()
    return int(number[0]) * 1024 if len(number) == 2 and number[0].isdigit() and number[1] == "kB" else None
