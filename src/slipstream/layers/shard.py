"""How a layer's work is split between the ranks of a tensor-parallel group."""

from __future__ import annotations

from slipstream.errors import ConfigError
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's place in its group. Megatron-LM: Shoeybi et al., arXiv 1909.08053.

    A column-parallel matrix keeps a range of its output rows, the row-parallel one after it the same range of its
    input columns; the sum over ranks is the layer's output.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} of {self.size} does not exist.", where="tensor parallelism")

    def part(self, n: int, unit: int = 1) -> tuple[int, int]:
        """This rank's [start, stop) of n items that may only be cut between groups of `unit` (e.g. one head's rows).

        Raises ConfigError when n / unit groups do not divide evenly.
        """
        if n % (unit * self.size):
            raise ConfigError(
                f"{n} rows in units of {unit} do not divide between {self.size} ranks.",
                where="tensor parallelism",
                fix="Choose a size that divides the model's KV heads and intermediate size.",
            )
        share = n // self.size
        return self.rank * share, (self.rank + 1) * share

    def require_single(self) -> None:
        """Raises ConfigError for a group of more than one rank: a sum over ranks needs a communicator."""
        if self.size > 1:
            raise ConfigError(
                f"tensor parallelism over {self.size} ranks needs a communicator, and this build has none.",
                where="tensor parallelism",
                fix="Use a size of 1.",
            )
