"""Draft models beside the tiny ones: the same weights, disturbed ones, or others altogether."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from tiny_engine import MAX_MODEL_LEN, Spy, _values, backend_kernels, family_of, tiny_config

from slipstream.engine.draft_model import ModelDrafter
from slipstream.engine.row_drafter import DraftPool
from slipstream.engine.runner import ModelRunner
from slipstream.engine.speculation import SpeculativeDrafts
from slipstream.kv.storage import KVStorage
from slipstream.models.build import build_model, kv_spec
from slipstream.models.family import Model
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.proposer import Proposer

BLOCK_SIZE = 4


@cache
def disturbed_model(backend: str, noise: float, seed: int = 0) -> Model:
    """`tiny_model` with so much noise, as a share of its own size, in every matrix."""
    kernels = backend_kernels(backend)
    family, config = family_of("LlamaForCausalLM"), tiny_config("LlamaForCausalLM")
    own, other = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    weights = {}
    for slot in family.slots(config):
        values = _values(own, slot.shape)
        if len(slot.shape) > 1:
            values = values + np.float32(noise) * _values(other, slot.shape)
        weights[slot.name] = kernels.bind(slot.kind, values)
    return build_model(family, config, weights, kernels, max_position=MAX_MODEL_LEN)


class Drafter:
    """Give `make` to a TinyEngine as `drafts`; then `runner` has the draft model's plans and `model` is the drafter."""

    def __init__(
        self,
        backend: str,
        *,
        noise: float = 0.0,
        num_tokens: int = 3,
        num_blocks: int = 100,
        caching: bool = False,
        max_model_len: int = MAX_MODEL_LEN,
        max_step_tokens: int = 512,
        vocab_size: int | None = None,
        lookup: Proposer | None = None,
    ) -> None:
        kernels = backend_kernels(backend)
        weights = disturbed_model(backend, noise)
        spec = kv_spec(weights.config, block_size=BLOCK_SIZE, dtype="float16" if backend == "cpu" else "float32")
        kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
        self._forward = weights if kernels.compile is None else kernels.compile(weights, kv)
        self._kv, self._kernels, self._lookup = kv, kernels, lookup
        self._pool = DraftPool(num_blocks, BLOCK_SIZE, max_model_len, max_step_tokens, caching)
        self._vocab_size = vocab_size or weights.config.vocab_size
        self._num_tokens = num_tokens
        self.runner: Spy
        self.model: ModelDrafter

    @property
    def make(self) -> Callable[[GrammarStates], SpeculativeDrafts]:
        def made(grammars: GrammarStates) -> SpeculativeDrafts:
            own = GrammarStates(grammars._compiler)
            self.runner = Spy(ModelRunner(self._forward, self._kv, self._kernels.to_numpy, own, self._kernels.sampling))
            self.model = ModelDrafter(self.runner, self._pool, self._vocab_size)
            control = Controller(ControlOptions(policy="fixed", num_tokens=self._num_tokens), None)
            return SpeculativeDrafts(self._lookup, control, grammars, self.model)

        return made

    def fed(self, name: str) -> list[int]:
        """How many tokens of the request each of the draft model's steps took."""
        return [len(row.tokens) for row in self.runner.rows(name)]

    def idle(self) -> None:
        """Prove that nothing is kept of requests that have ended."""
        self.model.check()
        assert self.model._kv.usage().used == 0
        assert not self.model._followers
