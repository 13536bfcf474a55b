"""What a backend may do for sampling: the definitions of the `sampling` room, carried out over batches of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.lean import dataclass

LogitsFault: TypeAlias = Literal["nan", "+inf", "-inf"]
"""A NaN among the logits; a largest one that is +inf; or -inf, so that nothing can be drawn."""

Draw: TypeAlias = tuple[float, int, float, float, int, int]
"""temperature, top_k (0: off), top_p, min_p, seed, absolute index of the token to be drawn."""

Logprob: TypeAlias = tuple[float, int, list[tuple[int, float]], LogitsFault | Literal[""]]
"""log-probability of the token, its rank from 1, the best tokens with theirs, and a `LogitsFault` or ""."""


@dataclass(frozen=True, slots=True)
class SamplingOps:
    """Exactly the tokens and numbers of the definitions in NumPy, from rows without or behind processors."""

    draw: Callable[[NDArray[np.float32], Sequence[tuple[int, Draw]]], tuple[list[int], list[tuple[int, LogitsFault]]]]
    """(logits [L, V], entries (row of the logits, draw)): a token per entry, and (entry, fault) where there is none."""

    draw_reduced: Callable[
        [NDArray[np.float32], NDArray[np.int32], Sequence[tuple[int, Draw]]],
        tuple[list[int], list[tuple[int, LogitsFault]]],
    ]
    """As `draw`, of logits [L, n] of the tokens `ids` [n], ascending. For drafts: where no filter is asked for, tokens
    that are less likely than e^-6 times the likeliest are left out."""

    draw_processed: Callable[[NDArray[np.float64], Draw], tuple[int, LogitsFault | Literal[""]]]
    """(scores [V] behind processors, draw): the token, and a `LogitsFault` or ""."""

    logprobs: Callable[[NDArray[np.float32], Sequence[tuple[int, int, int]]], list[Logprob]]
    """(logits [L, V], entries (row of the logits, token, number of best tokens wanted)): one answer per entry."""
