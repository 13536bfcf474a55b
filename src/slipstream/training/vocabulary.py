"""Which tokens the head can draft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def draft_ids(
    answers: Iterable[NDArray[np.int32]], vocab_size: int, size: int, always: Sequence[int]
) -> NDArray[np.int32]:
    """The most frequent `size` token ids, ascending: those of `always`, then by count, the lower id first among equals.

    Tokens that no answer has fill up what is left, so that the result has min(size, vocab_size) ids. A reduced
    vocabulary keeps the head's output small (FR-Spec, arXiv 2502.14856).
    """
    counts = np.zeros(vocab_size, np.int64)
    for tokens in answers:
        counts += np.bincount(tokens, minlength=vocab_size)
    counts[list(always)] = np.iinfo(np.int64).max
    chosen = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return np.sort(chosen).astype(np.int32)
