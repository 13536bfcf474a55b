"""Models treat tensors as opaque, use every weight they ask for, and always make the same ops."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.models.build import build_model
from slipstream.models.family import Family
from slipstream.models.reader import Reader
from slipstream.models.registry import FAMILIES
from tests.kernels.batches import token_batch
from tests.models.hf_configs import TINY
from tests.models.recording import Opaque, recording_kernels

pytestmark = pytest.mark.fast

CASES = [(family, name) for family in FAMILIES for name in family.hf_architectures]


class Watched(dict[str, Any]):
    """Remembers which weights were taken."""

    def __init__(self, names: list[str]) -> None:
        super().__init__({name: Opaque(name) for name in names})
        self.taken: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.taken.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            self.taken.add(name)
        return super().get(name, default)


@pytest.mark.parametrize(("family", "architecture"), CASES, ids=[name for _, name in CASES])
def test_model_uses_all_its_weights_and_never_looks_inside(family: Family, architecture: str) -> None:
    config = family.from_hf(Reader({"architectures": [architecture], **TINY[architecture]}, "config.json"))
    slots = family.slots(config)
    names = [slot.name for slot in slots]
    assert len(set(names)) == len(names)
    weights = Watched(names)
    kernels, calls = recording_kernels()
    model = build_model(family, config, weights, kernels, max_position=8)
    assert weights.taken == set(names)

    calls.clear()
    logits = model(token_batch([1, 2], [0, 0], [1]), None)  # type: ignore[arg-type]
    assert isinstance(logits, Opaque)
    first = list(calls)
    assert calls.count("attention") == config.num_layers
    calls.clear()
    model(token_batch([3], [0], [0]), None)  # type: ignore[arg-type]
    assert calls == first
