"""One file of packed matrices: written once, checked and mapped from then on.

Layout: the matrices, each at a multiple of 64 bytes with at least 64 bytes behind it; a JSON index; a footer of fixed
size. The index names every matrix with its type, shape and place, and holds an XXH3 digest of each 4 MiB of the
matrices; the footer holds the index's size and digest. XXH3: https://github.com/Cyan4973/xxHash.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

FORMAT_VERSION = 1
CHUNK = 4 << 20  # bytes under one digest
FULL_CHECK = 2 << 30  # bytes; of larger files a sample of this size is checked

_ALIGN = 64
_FOOTER = struct.Struct("<16sQQ")  # magic, bytes of the index, digest of the index
_MAGIC = b"slipstream-pack\0"


class BrokenPackedFileError(Exception):
    """What is wrong with a file of packed matrices; it never reaches a user as an error."""


class PackedEntry(NamedTuple):
    dtype: str  # what the bytes are, in the writer's words: a GGUF type name
    shape: tuple[int, ...]
    start: int
    nbytes: int


class PackedWriter:
    """Appends matrices to an open, empty file; `finish` makes it complete. All methods raise OSError."""

    def __init__(self, file: BinaryIO, key: str) -> None:
        self._file = file
        self._key = key
        self._size = 0
        self._tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        self._digests: list[str] = []
        self._chunk = xxh3_64()

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        self._tensors[name] = (dtype, shape, self._size, data.nbytes)
        self._write(data.data)
        self._write(memoryview(bytes(_ALIGN + -data.nbytes % _ALIGN)))

    def finish(self) -> None:
        """Writes index and footer, and waits until the storage device has everything."""
        if self._size % CHUNK:
            self._digests.append(self._chunk.hexdigest())
        index = json.dumps(
            {
                "version": FORMAT_VERSION,
                "key": self._key,
                "data_bytes": self._size,
                "chunk_bytes": CHUNK,
                "digests": self._digests,
                "tensors": self._tensors,
            }
        ).encode()
        self._file.write(index)
        self._file.write(_FOOTER.pack(_MAGIC, len(index), xxh3_64(index).intdigest()))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, data: memoryview) -> None:
        while data:
            part = data[: CHUNK - self._size % CHUNK]
            self._file.write(part)
            self._chunk.update(part)
            self._size += len(part)
            data = data[len(part) :]
            if self._size % CHUNK == 0:
                self._digests.append(self._chunk.hexdigest())
                self._chunk = xxh3_64()


class PackedFile:
    """A mapped file. The arrays of `data` are read-only and keep the mapping alive."""

    def __init__(self, mapping: mmap.mmap, entries: Mapping[str, PackedEntry]) -> None:
        self._mapping = mapping
        self.entries = entries

    def data(self, name: str) -> NDArray[np.uint8]:
        entry = self.entries[name]
        return np.frombuffer(self._mapping, np.uint8, entry.nbytes, entry.start)


def open_packed(path: Path, key: str, *, full_check: int = FULL_CHECK, first: int = 0) -> PackedFile:
    """Map a file that `PackedWriter` completed under this key.

    Checked: sizes, the index's digest, its version and key, every place, and the digests of all chunks. Of files with
    more than `full_check` bytes the last chunk and every n-th from number `first` % n are checked instead, such that
    they amount to `full_check`; another `first` checks others.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it may not be read.
        BrokenPackedFileError: anything about it is not as written.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BrokenPackedFileError("it is not a regular file")
        size = status.st_size
        if size <= _FOOTER.size:
            raise BrokenPackedFileError(f"it has {size} bytes only")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, index_bytes, index_digest = _FOOTER.unpack(mapping[-_FOOTER.size :])
    data_bytes = size - _FOOTER.size - index_bytes
    if magic != _MAGIC or data_bytes < 0:
        raise BrokenPackedFileError("it does not end as a complete file does")
    raw = mapping[data_bytes : data_bytes + index_bytes]
    if xxh3_64(raw).intdigest() != index_digest:
        raise BrokenPackedFileError("its index does not have the digest written beside it")
    try:
        digests, entries = _read_index(raw, key, data_bytes)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BrokenPackedFileError(f"its index is not one: {type(error).__name__}") from error
    _check_chunks(mapping, data_bytes, digests, full_check, first)
    return PackedFile(mapping, MappingProxyType(entries))


def _without_waiting(path: str, flags: int) -> int:
    """A pipe in the file's place would be waited for until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_index(raw: bytes, key: str, data_bytes: int) -> tuple[list[str], dict[str, PackedEntry]]:
    index: dict[str, Any] = json.loads(raw)
    if (index.get("version"), index.get("key")) != (FORMAT_VERSION, key):
        raise BrokenPackedFileError("it was written for another model or layout")
    if index["data_bytes"] != data_bytes or len(index["digests"]) != -(-data_bytes // CHUNK):
        raise BrokenPackedFileError(f"it should hold {index['data_bytes']} bytes of matrices, not {data_bytes}")
    entries = {
        name: PackedEntry(dtype, tuple(shape), *place) for name, (dtype, shape, *place) in index["tensors"].items()
    }
    for name, (_, _, start, nbytes) in entries.items():
        if start < 0 or start % _ALIGN or nbytes < 0 or start + nbytes + _ALIGN > data_bytes:
            raise BrokenPackedFileError(f"the place of {name} is outside it")
    return index["digests"], entries


def _check_chunks(mapping: mmap.mmap, data_bytes: int, digests: list[str], full_check: int, first: int) -> None:
    step = max(1, -(-data_bytes // full_check))
    numbers = [*range(first % step, len(digests), step)]
    if digests and numbers[-1:] != [len(digests) - 1]:
        numbers.append(len(digests) - 1)
    with memoryview(mapping) as view:
        for number in numbers:
            with view[number * CHUNK : min((number + 1) * CHUNK, data_bytes)] as chunk:
                if xxh3_64(chunk).hexdigest() != digests[number]:
                    raise BrokenPackedFileError(f"the bytes from {number * CHUNK} on do not have their digest")
