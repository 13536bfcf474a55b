"""Workloads from files: a trace of arrival times and lengths (CSV), or chats (JSONL)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.bench.workload import Item, Source
from slipstream.errors import UsageError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class TraceRow:
    due: float  # seconds after the first row
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a trace's lengths, with words of our own. `cap` bounds the tokens of prompt and output together, by
    shortening the prompt; what does not fit a small model would otherwise be refused."""

    name: str
    rows: tuple[TraceRow, ...]
    source: Source
    cap: int | None = None

    def item(self, level: int, index: int) -> Item:
        row = self.rows[index % len(self.rows)]
        output = row.output_tokens if self.cap is None else min(row.output_tokens, self.cap // 2)
        prompt = row.prompt_tokens if self.cap is None else min(row.prompt_tokens, self.cap - output)
        due = row.due if index < len(self.rows) else None
        return Item("trace", self.source.text(f"{level} {index}", prompt), output, due)

    def describe(self) -> dict[str, str]:
        cut = "none" if self.cap is None else f"{self.cap} tokens, prompt and output together"
        span = self.rows[-1].due
        return {"kind": "trace", "file": self.name, "rows": str(len(self.rows)), "span": f"{span:.0f} s", "cap": cut}


def read_trace(path: Path, source: Source, *, cap: int | None = None) -> Trace:
    """A CSV file with the columns TIMESTAMP (ISO 8601, or seconds), ContextTokens and GeneratedTokens.

    Rows are put in the order of time. Raises UsageError, with the line, for what is no such file.
    """
    rows: list[tuple[float, int, int]] = []
    lines = _csv_lines(path)
    header = [name.strip() for name in next(lines, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"has no column {', '.join(missing)}.",
            where=str(path),
            fix=f"A trace has the columns {', '.join(COLUMNS)}.",
        )
    places = [header.index(name) for name in COLUMNS]
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        where = f"{path}, line {number}"
        if len(line) != len(header):
            raise UsageError(f"has {len(line)} fields, the header {len(header)}.", where=where)
        time, prompt, output = (line[place].strip() for place in places)
        rows.append((_seconds(time, where), _length(prompt, where), _length(output, where)))
    if not rows:
        raise UsageError("holds no request.", where=str(path))
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return Trace(path.name, tuple(TraceRow(time - first, p, o) for time, p, o in rows), source, cap)


@dataclass(frozen=True, slots=True)
class Chats:
    """The chats of a file in their order, over and over. A few random words at the head of the first message make each
    one new, to every cache; an empty salt leaves them as they are."""

    name: str
    chats: tuple[tuple[Sequence[Mapping[str, Any]], int], ...]  # messages, max_tokens
    source: Source

    def item(self, level: int, index: int) -> Item:
        messages, limit = self.chats[index % len(self.chats)]
        content = messages[0]["content"]
        if self.source.salt and isinstance(content, str):
            head = {**messages[0], "content": f"({self.source.text(f'{level} {index}', 8)}) {content}"}
            messages = [head, *messages[1:]]
        return Item("chat", messages, limit)

    def describe(self) -> dict[str, str]:
        new = "by eight words before each" if self.source.salt else "as they are"
        return {"kind": "chats", "file": self.name, "chats": str(len(self.chats)), "made new": new}


def read_chats(path: Path, source: Source, *, default_tokens: int) -> Chats:
    """JSONL: {"messages": [...], "max_tokens": N} per line, max_tokens optional. Raises UsageError with the line."""
    chats: list[tuple[Sequence[Mapping[str, Any]], int]] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"is not valid JSON: {error}.", where=where) from error
        messages = entry.get("messages") if isinstance(entry, dict) else None
        if not isinstance(messages, list) or not messages or not all(_is_message(each) for each in messages):
            raise UsageError('holds no "messages", a list of {"role": ..., "content": ...}.', where=where)
        limit = entry.get("max_tokens", default_tokens)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise UsageError(f"max_tokens is {limit!r}, not a whole number above 0.", where=where)
        chats.append((messages, limit))
    if not chats:
        raise UsageError("holds no chat.", where=str(path))
    return Chats(path.name, tuple(chats), source)


def _csv_lines(path: Path) -> Iterator[list[str]]:
    reader = csv.reader(_text(path).splitlines())
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"is not CSV: {error}.", where=f"{path}, line {reader.line_num}") from error


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"is not valid UTF-8 (byte {error.start}).", where=str(path)) from error


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            stamp = datetime.fromisoformat(text)
        except ValueError as error:
            raise UsageError(f"{text!r} is neither an ISO 8601 time nor seconds.", where=where) from error
        return (stamp.replace(tzinfo=UTC) if stamp.tzinfo is None else stamp).timestamp()
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is not a time.", where=where)
    return value


def _length(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= MAX_TOKENS:
        raise UsageError(f"{text!r} is not a number of tokens from 1 to {MAX_TOKENS}.", where=where)
    return int(text)
