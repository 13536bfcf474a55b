"""Disk space and file-system errors, in the words of the person whose disk it is."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import DiskSpaceError, ResourceError

FreeBytes = Callable[[Path], int]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OTHER_FOLDER = "Free some space, or choose another folder with --cache-dir."


def format_bytes(num_bytes: int) -> str:
    """Decimal units, as disks and networks are sold: 98362432 -> "98.4 MB"."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    value = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def free_bytes(directory: Path) -> int:
    """Bytes that an unprivileged process may still write below `directory` (which need not exist yet)."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def require_space(directory: Path, needed: int, free: int, purpose: str) -> None:
    """Raises DiskSpaceError, with both numbers, unless `free` bytes suffice."""
    if free < needed:
        raise DiskSpaceError(
            f"{purpose} needs {format_bytes(needed)} of disk space, but only {format_bytes(free)} are free.",
            where=str(directory),
            fix=_OTHER_FOLDER,
        )


def disk_full(directory: Path, purpose: str) -> DiskSpaceError:
    return DiskSpaceError(f"the disk became full while {purpose}.", where=str(directory), fix=_OTHER_FOLDER)


@contextmanager
def file_errors(directory: Path, purpose: str) -> Iterator[None]:
    """Turn an OSError of the block into DiskSpaceError (full disk, exceeded quota) or ResourceError (all others)."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(directory, purpose) from error
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{purpose} failed: {reason}.",
            where=str(error.filename or directory),
            fix="Check the permissions, or choose another folder with --cache-dir.",
        ) from error


def fsync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
