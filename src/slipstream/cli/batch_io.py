"""JSONL in, JSONL out for `slipstream generate --batch`: resumable, bad lines kept apart."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.errors import DiskSpaceError, RequestError, UsageError
from slipstream.sampling.params import SamplingParams

_LINE_START = b'{"id": '
_JSON_ESCAPES = "backslashreplace"  # half a surrogate pair is not in UTF-8, but \udXXX is how JSON writes it
_INPUT_KEYS = {"id", "prompt", "messages", "tools"}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One valid input line; exactly one of `prompt` and `messages` is given."""

    number: int  # 1-based line number in the input file
    id: str
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    params: SamplingParams

    @property
    def digest(self) -> str:
        """Of what is asked and how; another answer under the same id is told apart by it."""
        asked = [self.prompt, self.messages, self.tools, asdict(self.params)]
        return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int
    error: str


def read_batch(path: Path, defaults: Mapping[str, Any]) -> Iterator[BatchLine | BadLine]:
    """Lines of `path` in order; empty lines are skipped. Never raises for the content of a line.

    A line is an object with `prompt` (text) or `messages` (chat), an optional `id` (default: line-NUMBER)
    and any sampling parameter, which overrides `defaults`.
    """
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                line = _parse(number, raw, defaults)
                if line.id in seen:
                    raise RequestError(f"the id {line.id!r} was used before in this file.")
                seen.add(line.id)
                yield line
            except RequestError as error:
                yield BadLine(number, str(error))


def _parse(number: int, raw: bytes, defaults: Mapping[str, Any]) -> BatchLine:
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"not valid UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise RequestError(f"not valid JSON: {error.msg} at column {error.colno}.") from error
    except RecursionError as error:
        raise RequestError("not valid JSON: nested too deeply.") from error
    except ValueError as error:
        raise RequestError("not valid here: a number has thousands of digits.") from error
    if not isinstance(data, dict):
        raise RequestError(f"expected an object, got {type(data).__name__}.")
    identifier = data.get("id", f"line-{number}")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise RequestError(f"id must be a string or an integer, got {identifier!r}.")
    prompt, messages, tools = data.get("prompt"), data.get("messages"), data.get("tools")
    if (prompt is None) == (messages is None):
        raise RequestError("exactly one of 'prompt' and 'messages' is needed.")
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError(f"prompt must be a string, got {type(prompt).__name__}.")
    if messages is not None and not isinstance(messages, list):
        raise RequestError(f"messages must be a list, got {type(messages).__name__}.")
    if tools is not None and (not isinstance(tools, list) or messages is None):
        raise RequestError("tools must be a list and come with 'messages'.")
    given = {key: value for key, value in data.items() if key not in _INPUT_KEYS}
    params = SamplingParams.from_mapping({**defaults, **given})
    return BatchLine(number, str(identifier), prompt, messages, tools, params)


class BatchWriter:
    """Appends one JSON object per finished request, in the order in which they finish; `done` holds the ids that an
    earlier run finished, with the digest of what was asked (None if the line does not tell).

    A last line that was cut off by an interruption is removed on opening. Every line is flushed, so that an
    interruption loses at most the requests that were running. The file is locked while it is open, by a lock of the
    kernel that vanishes with its holder; raises UsageError if another process has it, and OSError.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self.done: dict[str, str | None] = {}
        # Not buffered: what a buffer could not write, closing the file would write once more, into the middle of it.
        self._file = path.open("ab", buffering=0)
        try:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # /dev/null is everybody's
                self._lock()
                self._file.truncate(0 if overwrite else self._recover())
                self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "another process is writing this file.",
                where=str(self.path),
                fix="Wait for it and run the same command again, or name another file.",
            ) from error

    def _recover(self) -> int:
        """Fills `done`; the number of bytes that are whole lines."""
        keep = 0
        with self.path.open("rb") as file:
            for raw in file:
                try:
                    entry = json.loads(raw)
                except (ValueError, RecursionError):
                    entry = None
                complete = raw.endswith(b"\n") and isinstance(entry, dict) and isinstance(entry.get("id"), str)
                if not complete:
                    cut_off = not raw.endswith(b"\n") and raw[: len(_LINE_START)] == _LINE_START[: len(raw)]
                    if not cut_off:
                        raise UsageError(
                            "the file exists and is not the output of an earlier run.",
                            where=str(self.path),
                            fix="Name another file, or pass --overwrite.",
                        )
                    break
                assert entry is not None
                self.done[entry["id"]] = entry.get("asked")
                keep += len(raw)
        return keep

    def write(self, identifier: str, entry: Mapping[str, Any]) -> None:
        """Raises DiskSpaceError when the disk is full; the file then ends with a whole line."""
        text = json.dumps({"id": identifier, **entry}, ensure_ascii=False) + "\n"
        rest = text.encode("utf-8", _JSON_ESCAPES)
        position = self._file.tell()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            try:
                self._file.truncate(position)
                self._file.seek(position)
            finally:
                raise DiskSpaceError(
                    f"cannot write the result: {error.strerror}.",
                    where=str(self.path),
                    fix="Free some space and run the same command again: finished lines are kept.",
                ) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["BadLine", "BatchLine", "BatchWriter", "read_batch"]
