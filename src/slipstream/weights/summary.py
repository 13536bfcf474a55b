"""What a checkpoint holds, from its index alone."""

from __future__ import annotations

import math

from slipstream.lean import dataclass
from slipstream.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class DtypeTotal:
    """All tensors of one stored type."""

    dtype: str
    num_tensors: int
    num_parameters: int
    nbytes: int

    @property
    def bits_per_parameter(self) -> float:
        """Scales and minima included."""
        return 8 * self.nbytes / self.num_parameters if self.num_parameters else 0.0


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """`by_dtype` is ordered by bytes, largest first."""

    num_tensors: int
    num_parameters: int
    nbytes: int
    by_dtype: tuple[DtypeTotal, ...]


def summarize(checkpoint: Checkpoint) -> CheckpointSummary:
    """Count tensors, parameters (stored values, so a tied head counts once) and bytes. Reads no tensor."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for info in checkpoint.tensors.values():
        groups.setdefault(info.dtype, []).append((math.prod(info.shape), info.nbytes))
    totals = [
        DtypeTotal(dtype, len(sizes), sum(count for count, _ in sizes), sum(nbytes for _, nbytes in sizes))
        for dtype, sizes in groups.items()
    ]
    return CheckpointSummary(
        num_tensors=sum(total.num_tensors for total in totals),
        num_parameters=sum(total.num_parameters for total in totals),
        nbytes=sum(total.nbytes for total in totals),
        by_dtype=tuple(sorted(totals, key=lambda total: (-total.nbytes, total.dtype))),
    )
