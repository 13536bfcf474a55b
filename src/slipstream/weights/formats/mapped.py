"""A file mapped read-only into memory, with the operating system's refusals turned into ours."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

from slipstream.errors import InsufficientMemoryError, ModelFormatError, ModelNotFoundError, SlipstreamError


def os_refusal(path: Path, error: OSError) -> SlipstreamError:
    """The error that says why the operating system would not give us `path`."""
    where = str(path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if path.is_symlink():
            return ModelNotFoundError(
                f"is a link to {os.readlink(path)}, which does not exist.",
                where=where,
                fix="Repair the link or name the model file itself.",
            )
        return ModelNotFoundError(
            "there is no such file or folder.",
            where=where,
            fix="Check the spelling, or fetch it with `slipstream pull`.",
        )
    if isinstance(error, PermissionError):
        return ModelNotFoundError(
            "cannot be read: permission denied.", where=where, fix="Give your user read permission on it."
        )
    if error.errno == errno.ENOMEM:
        return InsufficientMemoryError(
            "does not fit into the memory that this process may use.",
            where=where,
            fix="Raise the limit on address space (`ulimit -v`), or use a smaller model.",
        )
    return ModelNotFoundError(f"cannot be read: {error.strerror or error}.", where=where)


def map_file(path: Path) -> mmap.mmap:
    """Map a regular file.

    Raises:
        ModelNotFoundError: it is absent, a broken link, or may not be read.
        ModelFormatError: it is empty or not a regular file.
        InsufficientMemoryError: the process may not map so much.
    """
    try:
        # A pipe would block the open for ever, so look before opening.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelFormatError("is not a regular file.", where=str(path))
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFormatError("the file is empty.", where=str(path), fix="Fetch it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise os_refusal(path, error) from error
