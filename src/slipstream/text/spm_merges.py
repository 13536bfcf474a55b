"""Merges of a SentencePiece BPE vocabulary.

SentencePiece stores no merges: while encoding it joins the neighbours whose concatenation is a piece, best score first
(Kudo and Richardson, arXiv 1808.06226). A BPE engine that wants merges gets every way to cut a piece into two pieces,
ranked by the score of the result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BASE = 0x9E3779B97F4A7C15  # odd, so invertible modulo 2**64
_FILTER_BITS = (
    22  # one flag for every value of the leading bits: most cuts are no two pieces, and this says so in one read
)
_FILTER_SHIFT = np.uint64(64 - _FILTER_BITS)


def merges_of(tokens: list[str], order: npt.NDArray[np.int64]) -> list[tuple[str, str]]:
    """All `(left, right)` with both, and their concatenation, among `tokens[order]`; `order` ranks the results.

    For one result the longer left part comes first, as in the conversion that Hugging Face uses. A quarter of a million
    pieces have over a million cuts, so both halves are looked up by a polynomial hash modulo 2**64, all cuts at once; a
    pair that only the hash found (chance 1e-8) would concatenate to no known piece, which the BPE constructor refuses.
    """
    pieces = [tokens[token_id] for token_id in order]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    codes = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    powers = _powers(_BASE, len(codes) + 1)
    inverses = _powers(pow(_BASE, -1, 2**64), len(codes) + 1)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum((codes + np.uint64(1)) * powers[:-1], dtype=np.uint64)))

    def hashes(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        result: npt.NDArray[np.uint64] = (sums[end] - sums[begin]) * inverses[begin]
        return result

    known = hashes(starts[:-1], starts[1:])
    by_hash = np.argsort(known)
    known = known[by_hash]
    maybe_known = np.zeros(1 << _FILTER_BITS, dtype=bool)
    maybe_known[known >> _FILTER_SHIFT] = True

    def find(wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Index into `pieces`, or -1."""
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, by_hash[at], -1)

    # Every cut of every piece, the longest left part first.
    num_cuts = np.maximum(lengths - 1, 0)
    piece = np.repeat(np.arange(len(pieces)), num_cuts)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(num_cuts) - num_cuts, num_cuts)
    begin, end = starts[piece], starts[piece + 1]
    cut = end - 1 - within
    left_hash, right_hash = hashes(begin, cut), hashes(cut, end)
    likely = maybe_known[left_hash >> _FILTER_SHIFT] & maybe_known[right_hash >> _FILTER_SHIFT]
    left, right = find(left_hash[likely]), find(right_hash[likely])
    keep = (left >= 0) & (right >= 0)
    names = np.array(pieces, dtype=object)
    return list(zip(names[left[keep]].tolist(), names[right[keep]].tolist(), strict=True))


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    """1, base, base**2, ... modulo 2**64."""
    factors = np.full(count, np.uint64(base))
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
