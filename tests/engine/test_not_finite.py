"""A request whose numbers overflow ends with an error; those that share its steps do not notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_engine import BACKENDS, MAX_MODEL_LEN, TinyEngine, backend_kernels, family_of, tiny_config, tokens

from slipstream.models.build import build_model
from slipstream.models.family import Model
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast
HUGE = 98  # a token whose embedding, scaled as Gemma does it, is infinite
PARAMS = SamplingParams(max_tokens=3, temperature=0, allowed_token_ids=tuple(range(HUGE)))


def model(backend: str, final_soft_cap: float | None) -> Model:
    kernels, rng = backend_kernels(backend), np.random.default_rng(0)
    family = family_of("Gemma3ForCausalLM")
    config = replace(tiny_config("Gemma3ForCausalLM"), final_soft_cap=final_soft_cap)
    weights = {}
    for slot in family.slots(config):
        values = rng.standard_normal(slot.shape, dtype=np.float32) * np.float32(slot.shape[-1] ** -0.5)
        if slot.kind == "embedding":
            values[HUGE] = 0
            values[HUGE, 0] = 1e38
        weights[slot.name] = kernels.bind(slot.kind, values)
    return build_model(family, config, weights, kernels, max_position=MAX_MODEL_LEN)


@pytest.mark.parametrize("final_soft_cap", [None, 2.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_request_that_overflows_fails(backend: str, final_soft_cap: float | None) -> None:
    made = model(backend, final_soft_cap)
    others = [([1, 2, 3, 4], PARAMS), ([5] * 9, PARAMS)]
    alone = TinyEngine(made, backend=backend).alone(others)
    [failed, *rest] = TinyEngine(made, backend=backend).answer([([1, 2, HUGE, 4], PARAMS), *others])
    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].error == "the model produced NaN logits."
    assert failed.outputs[0].token_ids == []
    assert tokens(rest) == tokens(alone)
    assert all(len(each) == 3 for each in tokens(rest))
