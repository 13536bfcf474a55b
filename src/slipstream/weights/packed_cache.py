"""Packed matrices kept on disk: one process writes them, all map them.

A cache file belongs to one model file, to what the model takes from it, and to the layout that the backend packs. It is
written beside its final name under a lock, made durable and then renamed, so a file under a final name is complete
whatever happens to its writer. Files are never changed in place: a process that has one mapped keeps what it mapped.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xxhash import xxh3_64, xxh3_128

from slipstream.lean import dataclass
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.match import TensorSource
from slipstream.weights.packed_file import FORMAT_VERSION, BrokenPackedFileError, PackedFile, PackedWriter, open_packed

PATIENCE = 120.0  # seconds that a start waits for another process to finish writing
_IDENTIFYING = 1 << 20  # bytes at either end of a model file that are part of its identity
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where one model's packed matrices are kept, and under which key."""

    folder: Path
    prefix: str  # of all files of this model and backend
    key: str

    @property
    def path(self) -> Path:
        return self.folder / f"{self.prefix}-{self.key[:16]}.packed"

    @property
    def partial(self) -> Path:
        """Only the holder of the lock touches it."""
        return self.folder / f"{self.prefix}.partial"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.prefix}.lock"


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What became of the cache in one start. `in_use`: matrices are mapped. `warning`: what a person should know."""

    in_use: bool
    why: str
    warning: str | None = None


def cache_place(
    folder: Path, checkpoint: Checkpoint, sources: Sequence[TensorSource], backend: str, layout: str
) -> CachePlace:
    """The key covers the layout, the parts taken of every tensor, and size, time of change and both ends of each file.

    Raises OSError if a model file cannot be read any more.
    """
    taken = [
        (s.slot.name, s.slot.shape, s.info.name, s.info.dtype, s.info.shape, s.expert, s.rows, s.rope_heads, s.offset)
        for s in sources
    ]
    files = [_identity(path) for path in checkpoint.files]
    path = checkpoint.path.resolve()
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", path.name.removesuffix(".gguf"))[:80]
    prefix = f"{stem}-{xxh3_64(os.fsencode(path)).hexdigest()[:8]}-{backend}"
    return CachePlace(folder, prefix, xxh3_128(json.dumps([FORMAT_VERSION, layout, files, taken]).encode()).hexdigest())


def open_or_write(
    place: CachePlace, write: Callable[[PackedWriter], None], *, patience: float = PATIENCE
) -> tuple[PackedFile | None, CacheReport]:
    """The cached file, written now by `write` if there is none or it is broken; None: do without, for the reason given.

    What `write` raises passes through, but an OSError of the cache's own files does not.
    """
    found, problem = _open(place)
    if found is not None:
        return found, CacheReport(True, f"kept in {place.path}")
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        with _locked(place.lock, patience) as locked:
            if not locked:
                why = f"another process has been writing {place.path} for more than {patience:.0f} s"
                return None, CacheReport(False, why, f"packed weights are not shared: {why}.")
            found, problem = _open(place)  # another process may have been faster
            if found is None:
                _write(place, write)
                found = open_packed(place.path, place.key)
    except (OSError, BrokenPackedFileError) as error:
        why = _reason(error, place.folder)
        return None, CacheReport(False, why, f"packed weights are not kept for the next start: {why}.")
    rebuilt = None if problem is None else f"the packed weights in {place.path} were written anew: {problem}."
    return found, CacheReport(True, f"kept in {place.path}", rebuilt)


def _open(place: CachePlace) -> tuple[PackedFile | None, str | None]:
    """The file, or what is wrong with the one that is there."""
    try:
        return open_packed(place.path, place.key, first=os.getpid()), None
    except FileNotFoundError:
        return None, None
    except (OSError, BrokenPackedFileError) as error:
        return None, _reason(error, place.path)


def _write(place: CachePlace, write: Callable[[PackedWriter], None]) -> None:
    try:
        with place.partial.open("wb") as file:
            writer = PackedWriter(file, place.key)
            write(writer)
            writer.finish()
        place.partial.replace(place.path)
    finally:
        place.partial.unlink(missing_ok=True)
    folder = os.open(place.folder, os.O_RDONLY)
    try:
        os.fsync(folder)  # the renaming itself
    finally:
        os.close(folder)
    for old in place.folder.glob(f"{place.prefix}-*.packed"):
        if old != place.path:
            old.unlink(missing_ok=True)  # of an earlier state of the model file, or of another layout


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[bool]:
    """Whether the lock was had within `patience` seconds. The kernel drops it when its holder dies."""
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(_POLL)
            else:
                yield True
                return


def _identity(path: Path) -> tuple[int, int, str]:
    """A digest of everything would read the whole file at every start."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = xxh3_128(file.read(_IDENTIFYING))
        file.seek(max(0, status.st_size - _IDENTIFYING))
        digest.update(file.read(_IDENTIFYING))
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, OSError):
        # Of a renaming that fails, the second name is the one that is in the way.
        return f"{error.filename2 or error.filename or path}: {error.strerror or error}"
    return str(error)
