"""The shortest way to end an answer: a search over bytes that the grammar still accepts.

It runs on a matcher of single bytes, where a step costs microseconds and there are at most 256 ways to go. The text
that it finds is always accepted; that none is shorter is certain only where the search did not have to prune.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

import llguidance
import numpy as np

BEAM = 6  # texts followed per length, no two of which can go on in the same ways
MAX_VISITS = 1500

_QUOTE, _COMMA, _BRACE, _BRACKET, _ZERO, _LETTER = 0x22, 0x2C, 0x7D, 0x5D, 0x30, 0x61
_FREE_TEXT = 64  # more allowed bytes than this: any character will do
_FEW = 4


def shortest_completion(matcher: llguidance.LLMatcher, *, json: bool, max_bytes: int) -> bytes | None:
    """A shortest text found that takes `matcher` (of single bytes, left as it is) to an accepting state.

    None if there is none within `max_bytes` or within the search's own limits. `json`: the grammar's language is JSON
    texts, so that the end of a string, a value, an array or an object is the best way on wherever it is allowed.
    """
    order = count()
    heap: list[tuple[int, int, bytes, llguidance.LLMatcher]] = [(0, next(order), b"", matcher.deep_copy())]
    seen: dict[int, set[bytes]] = {}
    for _ in range(MAX_VISITS):
        if not heap:
            return None
        length, _, text, state = heappop(heap)
        if state.is_accepting():
            return text
        forced = state.compute_ff_bytes()
        if forced:
            ways = [forced]
        else:
            mask = state.compute_bitmask()
            at_length = seen.setdefault(length, set())
            if mask in at_length or len(at_length) == BEAM:
                continue
            at_length.add(mask)
            ways = [bytes([byte]) for byte in _ways(_allowed_bytes(mask), json)]
        for way in ways:
            if length + len(way) <= max_bytes:
                following = state.deep_copy() if len(ways) > 1 else state
                if following.consume_tokens(list(way)):
                    heappush(heap, (length + len(way), next(order), text + way, following))
    return None


def _allowed_bytes(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.flatnonzero(bits[:256]).tolist()


def _ways(allowed: list[int], json: bool) -> list[int]:
    """The bytes worth trying: all if they are few, else the first of each kind."""
    if json:
        if len(allowed) > _FREE_TEXT:  # inside a string
            return [_QUOTE] if _QUOTE in allowed else [_LETTER if _LETTER in allowed else allowed[0]]
        for closing in (_BRACE, _BRACKET, _COMMA, _ZERO):
            if closing in allowed and (closing != _ZERO or _LETTER not in allowed):
                return [closing]
    if len(allowed) <= _FEW:
        return allowed
    kinds: dict[object, int] = {}
    for byte in allowed:
        kinds.setdefault(_kind(byte), byte)
    if len(kinds) > 1:
        kinds.pop("multi-byte", None)
    return list(kinds.values()) if not json else _spread(allowed, kinds)


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
