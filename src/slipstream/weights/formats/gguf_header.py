"""The header of one GGUF file: key/values and the tensor index, validated.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian.
Nothing is allocated before the bytes it would be filled from are known to exist, and counts are capped, so a
hostile file costs no more than reading a real one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream._native import read_strings
from slipstream.errors import ModelFormatError
from slipstream.lean import dataclass
from slipstream.weights.naming import show

_MAX_ENTRIES = 1 << 20
_MAX_ARRAY = 1 << 24
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = MappingProxyType(
    {
        0: struct.Struct("<B"),
        1: struct.Struct("<b"),
        2: struct.Struct("<H"),
        3: struct.Struct("<h"),
        4: struct.Struct("<I"),
        5: struct.Struct("<i"),
        6: struct.Struct("<f"),
        7: struct.Struct("<B"),
        10: struct.Struct("<Q"),
        11: struct.Struct("<q"),
        12: struct.Struct("<d"),
    }
)
_ARRAY_DTYPES: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {
        0: np.dtype("<u1"),
        1: np.dtype("<i1"),
        2: np.dtype("<u2"),
        3: np.dtype("<i2"),
        4: np.dtype("<u4"),
        5: np.dtype("<i4"),
        6: np.dtype("<f4"),
        7: np.dtype("<u1"),
        10: np.dtype("<u8"),
        11: np.dtype("<i8"),
        12: np.dtype("<f8"),
    }
)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the tensor index as the file has it: `dims` fastest first, `offset` from the data section."""

    name: str
    dims: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    version: int
    metadata: dict[str, Any]
    entries: tuple[IndexEntry, ...]
    alignment: int
    data_start: int


def parse_header(data: mmap.mmap | bytes, path: Path) -> GgufHeader:
    """Read everything before the tensor data.

    Metadata values are int, float, bool, str, list[str], or a numpy array (numeric and bool arrays).

    Raises:
        ModelFormatError: the header is truncated, inconsistent or of an unsupported version.
    """
    return _Parser(data, path).parse()


class _Parser:
    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self._data = data
        self._size = len(data)
        self._path = path
        self._pos = 0

    def parse(self) -> GgufHeader:
        if self._data[:4] != b"GGUF":
            raise self._error(f"is not a GGUF file: it begins with {bytes(self._data[:4])!r}, not b'GGUF'.")
        self._pos = 4
        version = self._u32("the version")
        if version & 0xFFFF == 0:
            raise self._error("is a big-endian GGUF file, which is not supported.", "Convert it to little endian.")
        if version not in (2, 3):
            raise self._error(f"is GGUF version {version}; versions 2 and 3 are supported.", "Convert the model again.")
        num_tensors = self._count("tensors", 24)
        num_pairs = self._count("metadata entries", 13)
        metadata = self._metadata(num_pairs)
        entries = tuple(self._entry() for _ in range(num_tensors))
        alignment = self._alignment(metadata)
        data_start = -(-self._pos // alignment) * alignment
        return GgufHeader(version, metadata, entries, alignment, data_start)

    def _metadata(self, num_pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string("a metadata key")
            if key in metadata:
                raise self._error(f"the metadata key {show(key)} appears twice.")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Any:
        what = f"the value of {show(key)}"
        type_number = self._u32(f"the type of {show(key)}")
        if type_number == _STRING:
            return self._string(what)
        if type_number == _ARRAY:
            return self._array(what)
        if type_number not in _SCALARS:
            raise self._error(f"{what} has the unknown type {type_number}.")
        fields = _SCALARS[type_number]
        (value,) = fields.unpack(self._take(fields.size, what))
        if type_number != _BOOL:
            return value
        if value > 1:
            raise self._error(f"{what} is a boolean with the value {value}.")
        return bool(value)

    def _array(self, what: str) -> list[str] | NDArray[Any]:
        element = self._u32(f"the element type of {what}")
        count = self._u64(f"the length of {what}")
        if element == _ARRAY:
            raise self._error(f"{what} is an array of arrays, which is not supported.")
        if element != _STRING and element not in _ARRAY_DTYPES:
            raise self._error(f"{what} is an array of the unknown type {element}.")
        if count > _MAX_ARRAY:
            raise self._error(f"{what} claims {count} elements; at most {_MAX_ARRAY} are accepted.")
        if element == _STRING:
            return self._strings(count, what)
        dtype = _ARRAY_DTYPES[element]
        # Copied, so that the mapping is not kept alive by metadata.
        values: NDArray[Any] = np.frombuffer(self._take(count * dtype.itemsize, what), dtype)
        if element != _BOOL:
            return values
        if count and values.max() > 1:
            raise self._error(f"{what} is an array of booleans with the value {values.max()}.")
        return values.astype(np.bool_)

    def _strings(self, count: int, what: str) -> list[str]:
        """The hot loop of opening: a vocabulary has up to several hundred thousand strings."""
        data, size, length_at = self._data, self._size, _U64.unpack_from
        if count * 8 > size - self._pos:
            raise self._truncated(count * 8, what)
        strings, pos = read_strings(np.frombuffer(data, np.uint8), self._pos, count)
        append = strings.append
        try:
            for _ in range(count - len(strings)):  # of a damaged file: finds out what is wrong
                if pos + 8 > size:
                    raise self._truncated(8, what)
                end = pos + 8 + length_at(data, pos)[0]
                if end > size:
                    raise self._truncated(end - pos, what)
                append(data[pos + 8 : end].decode())
                pos = end
        except UnicodeDecodeError as error:
            raise self._error(f"{what}: element {len(strings)} is not valid UTF-8.") from error
        self._pos = pos
        return strings

    def _entry(self) -> IndexEntry:
        name = self._string("a tensor name")
        num_dims = self._u32(f"the dimensions of {show(name)}")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._error(f"the tensor {show(name)} has {num_dims} dimensions; 1 to {_MAX_DIMS} are possible.")
        *dims, type_number, offset = struct.unpack(
            f"<{num_dims}QIQ", self._take(num_dims * 8 + 12, f"the index entry of {show(name)}")
        )
        return IndexEntry(name, tuple(dims), type_number, offset)

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}; it must be a power of two.")
        return alignment

    def _count(self, what: str, min_bytes: int) -> int:
        count = self._u64(f"the number of {what}")
        if count > _MAX_ENTRIES:
            raise self._error(f"the header claims {count} {what}; at most {_MAX_ENTRIES} are accepted.")
        if count * min_bytes > self._size - self._pos:
            raise self._error(
                f"the header claims {count} {what}, more than a file of {self._size} bytes can hold: "
                "it is truncated or damaged.",
                "Fetch it again.",
            )
        return count

    def _string(self, what: str) -> str:
        length = self._u64(f"the length of {what}")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} at byte {self._pos - length} is not valid UTF-8.") from error

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack(self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack(self._take(8, what))[0]
        return value

    def _take(self, length: int, what: str) -> bytes:
        if length > self._size - self._pos:
            raise self._truncated(length, what)
        start = self._pos
        self._pos += length
        return self._data[start : self._pos]

    def _truncated(self, length: int, what: str) -> ModelFormatError:
        return self._error(
            f"is truncated or damaged: {what} needs {length} bytes, the file ends after {self._size}.",
            "Fetch it again.",
        )

    def _error(self, what: str, fix: str | None = None) -> ModelFormatError:
        return ModelFormatError(what, where=str(self._path), fix=fix)
