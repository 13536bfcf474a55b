"""The shortest way to end an answer: a search over bytes that the grammar still accepts.

It runs on a matcher of single bytes, where a step costs microseconds and there are at most 256 ways to go. The text
that it finds is always accepted; that none is shorter is certain only where the search did not have to prune.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Literal

import numpy as np

from slipstream.sampling.grammar.forced import forced_bytes
from slipstream.sampling.grammar.merging import Step
from slipstream.sampling.grammar.multiples import digits_to_multiple

if TYPE_CHECKING:
    import llguidance

BEAM = 6  # texts followed per length, no two of which can go on in the same ways
TRIED = 16  # texts looked at per length, to find those
MAX_VISITS = 1500
MAX_ENDING = 2048  # bytes
FORCED_PER_VISIT = 16  # bytes without a choice that count as one visit

Style = Literal["json", "mixed", "any"]

_QUOTE, _COMMA, _BRACE, _BRACKET, _ZERO, _LETTER, _TAG = 0x22, 0x2C, 0x7D, 0x5D, 0x30, 0x61, 0x3C
_ESCAPE = 0x5C
_NUMERIC = frozenset(b"0123456789.eE+-")
_NINE, _ENDS = 0x39, (_COMMA, _BRACE, _BRACKET, _TAG)
_FREE_TEXT = 64  # more allowed bytes than this: any character will do
_FEW = 4


def shortest_completion(
    matcher: llguidance.LLMatcher,
    *,
    style: Style,
    max_bytes: int = MAX_ENDING,
    max_visits: int = MAX_VISITS,
    before: bytes = b"",
    steps: Sequence[Step] = (),
    out_of_time: Callable[[], bool] = lambda: False,
) -> bytes | None:
    """A shortest text found that takes `matcher` (of single bytes, left as it is) to an accepting state.

    None if there is none within `max_bytes` or within the search's own limits; `out_of_time` is asked before every
    step, which takes some milliseconds at most. `style` "json": the grammar's language is JSON texts, so that the end
    of a string, a value, an array or an object is the best way on wherever it is allowed; "mixed": JSON between fixed
    texts and tags. `steps`: what numbers have to be multiples of somewhere, `before`: the text's end so far, for those
    that have begun.
    """
    order = count()
    heap: list[tuple[int, int, bytes, llguidance.LLMatcher, bytes]] = [(0, next(order), b"", matcher, b"")]
    seen: dict[int, set[bytes]] = {}
    tried: dict[int, int] = {}
    visits = 0
    while heap and visits < max_visits and not out_of_time():
        visits += 1
        length, _, text, parent, way = heappop(heap)
        tried[length] = tried.get(length, 0) + 1
        if tried[length] > TRIED or len(seen.setdefault(length, set())) == BEAM:
            continue
        state = parent.deep_copy()
        if way and not state.consume_tokens(list(way)):
            continue
        text += way
        if state.is_accepting():
            return text
        mask = state.compute_bitmask()
        allowed = _allowed_bytes(mask)
        if len(allowed) == 1:
            forced = forced_bytes(state, max_bytes - length)
            visits += len(forced) // FORCED_PER_VISIT
            if forced:
                heappush(heap, (length + len(forced), next(order), text + forced, state, b""))
            continue
        if mask in seen[length]:
            continue
        seen[length].add(mask)
        if steps and _in_number(allowed):
            for more in digits_to_multiple(before + text, steps):
                heappush(heap, (length + len(more), next(order), text, state, more))
        for byte in _ways(allowed, style):
            if length < max_bytes:
                heappush(heap, (length + 1, next(order), text, state, bytes([byte])))
    return None


def _allowed_bytes(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.flatnonzero(bits[:256]).tolist()


def _in_number(allowed: list[int]) -> bool:
    """Where a number may go on, and cannot end."""
    return len(allowed) <= _FREE_TEXT and _NINE in allowed and not any(end in allowed for end in _ENDS)


def _ways(allowed: list[int], style: Style) -> list[int]:
    """The bytes worth trying: all if they are few, else the first of each kind."""
    if style != "any":
        if len(allowed) > _FREE_TEXT:  # inside a string
            ends = [byte for byte in (_QUOTE, _TAG) if byte in allowed and (byte == _QUOTE or style == "mixed")]
            return ends or [_LETTER if _LETTER in allowed else allowed[0]]
        allowed = [byte for byte in allowed if byte != _ESCAPE] or allowed  # a character is shorter than its escape
        for closing in (_BRACE, _BRACKET, _COMMA):
            if closing in allowed:
                return [closing]
        if _ZERO in allowed and _NUMERIC.issuperset(allowed):  # of a number, or of a text that looks like one so far
            return [_ZERO, *(byte for byte in allowed if not _ZERO <= byte <= _NINE)]
    if len(allowed) <= _FEW:
        return allowed
    kinds: dict[object, int] = {}
    for byte in allowed:
        kinds.setdefault(_kind(byte), byte)
    if len(kinds) > 1:
        kinds.pop("multi-byte", None)
    return list(kinds.values()) if style == "any" else _spread(allowed, kinds)


def _spread(allowed: list[int], kinds: dict[object, int]) -> list[int]:
    """In JSON the letters that begin words of an enumeration lead to words of all lengths: more of them are tried."""
    letters = [byte for byte in allowed if _kind(byte) in ("lower", "upper")]
    return list(dict.fromkeys([*kinds.values(), *letters[:BEAM]]))


def _kind(byte: int) -> object:
    char = chr(byte)
    if byte >= 0x80:
        return "multi-byte"
    if char.isdigit():
        return "digit"
    if char.isalpha():
        return "upper" if char.isupper() else "lower"
    return "blank" if char.isspace() or byte < 0x20 else byte
