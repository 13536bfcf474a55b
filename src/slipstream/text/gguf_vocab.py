"""The vocabulary in a GGUF file's metadata, read with checks (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from slipstream.errors import TokenizerError
from slipstream.lean import dataclass

_PREFIX = "tokenizer.ggml."
_Number = TypeVar("_Number", np.int64, np.float64)


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufVocab:
    """Tokens in id order, with `types` [V] int64 and, where the file has them, `scores` [V] float64."""

    tokens: list[str]
    types: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64] | None

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Ids in ascending order."""
        found: list[int] = np.flatnonzero(np.isin(self.types, [int(kind) for kind in types])).tolist()
        return found


class GgufMetadata:
    """Typed, refusing reads of the `tokenizer.ggml.*` keys. Values may be lists or numpy arrays."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def text(self, key: str) -> str | None:
        return self._typed(key, str)

    def flag(self, key: str, default: bool) -> bool:
        value = self._scalar(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _wrong_type(key, "true or false", value)
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self._scalar(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(key, "an integer", value)
        if not 0 <= value < vocab_size:
            raise TokenizerError(f"id {value} is outside the vocabulary of {vocab_size} tokens.", where=_PREFIX + key)
        return value

    def token_ids(self, key: str, vocab_size: int) -> list[int]:
        """A list of ids, empty if the key is absent."""
        values = self._list(key)
        ids: list[int] = [] if values is None else np.asarray(values, dtype=np.int64).tolist()
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise TokenizerError(
                    f"id {token_id} is outside the vocabulary of {vocab_size} tokens.", where=_PREFIX + key
                )
        return ids

    def strings(self, key: str) -> list[str] | None:
        values = self._list(key)
        if values is None:
            return None
        if isinstance(values, np.ndarray):
            values = values.tolist()
        if set(map(type, values)) <= {str}:
            return [*map(str, values)]
        position = next(index for index, value in enumerate(values) if not isinstance(value, str))
        raise TokenizerError(f"entry {position} is no string ({values[position]!r}).", where=_PREFIX + key)

    def octets(self, key: str) -> bytes | None:
        values = self._list(key)
        return None if values is None else np.asarray(values, dtype=np.int64).astype(np.uint8).tobytes()

    def vocab(self) -> GgufVocab:
        """Tokens, types and scores, checked against each other."""
        tokens = self.strings("tokens")
        if not tokens:
            raise TokenizerError(
                "the file has no vocabulary.", where=_PREFIX + "tokens", fix="Use a file that includes its tokenizer."
            )
        if len(set(tokens)) != len(tokens):
            token, count = Counter(tokens).most_common(1)[0]
            ids = [token_id for token_id, other in enumerate(tokens) if other == token]
            raise TokenizerError(
                f"token {token!r} appears {count} times (ids {', '.join(map(str, ids[:5]))}).", where=_PREFIX + "tokens"
            )
        types = self._numbers("token_type", len(tokens), np.int64)
        if types is None:
            types = np.full(len(tokens), int(TokenType.NORMAL))
        elif types.min() < 0 or types.max() > max(TokenType):
            token_id = int(np.flatnonzero((types < 0) | (types > max(TokenType)))[0])
            raise TokenizerError(f"token {token_id} has unknown type {types[token_id]}.", where=_PREFIX + "token_type")
        return GgufVocab(tokens, types, self._numbers("scores", len(tokens), np.float64))

    def _numbers(self, key: str, count: int, dtype: type[_Number]) -> npt.NDArray[_Number] | None:
        values = self._list(key)
        if values is None:
            return None
        if len(values) != count:
            raise TokenizerError(f"{len(values)} entries for {count} tokens.", where=_PREFIX + key)
        numbers = np.asarray(values, dtype=dtype)
        if not np.isfinite(numbers).all():
            raise TokenizerError(f"entry {int(np.argmin(np.isfinite(numbers)))} is not finite.", where=_PREFIX + key)
        return numbers

    def _list(self, key: str) -> Sequence[object] | npt.NDArray[np.generic] | None:
        value = self._metadata.get(_PREFIX + key)
        if value is None or isinstance(value, list | tuple | np.ndarray):
            return value
        raise _wrong_type(key, "a list", value)

    def _typed(self, key: str, kind: type[str]) -> str | None:
        value = self._scalar(key)
        if value is not None and not isinstance(value, kind):
            raise _wrong_type(key, "a string", value)
        return value

    def _scalar(self, key: str) -> object:
        value = self._metadata.get(_PREFIX + key)
        return value.item() if isinstance(value, np.generic) else value


def _wrong_type(key: str, wanted: str, value: object) -> TokenizerError:
    return TokenizerError(f"must be {wanted}, not {type(value).__name__}.", where=_PREFIX + key)
