"""Typed reads from somebody else's configuration, which refuse what they do not understand."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.lean import dataclass

MAX_SIZE = 2**31 - 1  # of anything that is counted: kernels count in 32 bits
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Reader:
    """`values` of one configuration, found in `where`; every key is looked up as `prefix` + key.

    A read raises ModelFormatError, naming the key, when it is absent without a default or of the wrong type.
    An explicit null counts as absent.
    """

    values: Mapping[str, Any]
    where: str
    prefix: str = ""

    def has(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def integer(self, key: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
        """An integer from 1 to `limit`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(key, value, "a positive integer")
        if value > limit:
            raise self._wrong(key, value, f"at most {limit}")
        return value

    def num_layers(self, key: str) -> int:
        """A number of layers: every one of them is described by itself, so it is bounded before anything is built."""
        return self.integer(key, limit=MAX_LAYERS)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._value(key, None)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def indices(self, key: str) -> tuple[int, ...]:
        """A list of integers from 0 on; empty when absent."""
        value = self.values.get(self.prefix + key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
            raise self._wrong(key, value, "a list of integers from 0 on")
        return tuple(value)

    def section(self, key: str) -> Reader:
        """The mapping at `key`, itself readable; empty when absent."""
        value = self.values.get(self.prefix + key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping")
        return Reader(value, f"{self.where}, {self.prefix}{key}")

    def require(self, key: str, *allowed: object) -> None:
        """Raises UnsupportedModelError when the key is present with a value that is not one of `allowed`."""
        if self.has(key) and self.values[self.prefix + key] not in allowed:
            raise self.unsupported(key)

    def unsupported(self, key: str) -> UnsupportedModelError:
        """An error that names the key and its value."""
        value = self.values.get(self.prefix + key)
        return UnsupportedModelError(f"{self.prefix}{key} = {value!r} is not supported.", where=self.where)

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(self.prefix + key)
        if value is not None:
            return value
        if default is None:
            raise ModelFormatError(f"{self.prefix}{key} is missing.", where=self.where)
        return default

    def _wrong(self, key: str, value: object, expected: str) -> ModelFormatError:
        return ModelFormatError(f"{self.prefix}{key} must be {expected}, not {reprlib.repr(value)}.", where=self.where)
