"""Looking up bound weights by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.kernels.table import Weight
from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """The bound weights below a prefix."""

    bound: Mapping[str, Weight]
    prefix: str = ""

    def __getitem__(self, name: str) -> Weight:
        return self.bound[self.prefix + name]

    def get(self, name: str) -> Weight | None:
        """None when the model has no such weight (an absent bias)."""
        return self.bound.get(self.prefix + name)

    def at(self, name: str) -> Weights:
        """The weights below `name`, e.g. at("layers.0")["mlp.up_proj.weight"]."""
        return Weights(self.bound, f"{self.prefix}{name}.")
