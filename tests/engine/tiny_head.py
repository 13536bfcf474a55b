"""Draft heads for the tiny models: random ones, and one that is always right about a model that is easily foreseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tiny_engine import MAX_MODEL_LEN, TinyEngine, _values, backend_kernels, family_of, tiny_config

from slipstream.engine.head_drafter import HeadDrafter
from slipstream.engine.head_runner import HeadRow, HeadRunner
from slipstream.engine.head_states import HeadStates
from slipstream.engine.plan import RowResult
from slipstream.engine.row_drafter import DraftPool
from slipstream.engine.speculation import SpeculativeDrafts
from slipstream.kv.storage import KVStorage
from slipstream.layers.embedding import LMHead
from slipstream.layers.rope import RopeConfig
from slipstream.models.build import build_model
from slipstream.models.draft_head import DraftHead, bind_head, head_kv_spec
from slipstream.models.draft_head_file import DraftHeadConfig, DraftHeadFile
from slipstream.models.family import Model
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.spec.controller import Controller, ControlOptions
from slipstream.spec.proposer import Proposer

BLOCK_SIZE = 4
LLAMA = "LlamaForCausalLM"
Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def target_weights(foreseen: bool, seed: int = 0) -> Arrays:
    """Those of `tiny_model`. foreseen: its layers change nothing, so the next token depends on the last one alone."""
    generator = np.random.default_rng(seed)
    family = family_of(LLAMA)
    weights = {slot.name: _values(generator, slot.shape) for slot in family.slots(tiny_config(LLAMA))}
    for name, each in weights.items():
        if foreseen and name.endswith(("o_proj.weight", "down_proj.weight")):
            each[:] = 0
    return weights


@cache
def target_model(backend: str, foreseen: bool) -> Model:
    kernels, family = backend_kernels(backend), family_of(LLAMA)
    values = target_weights(foreseen)
    bound = {slot.name: kernels.bind(slot.kind, values[slot.name]) for slot in family.slots(tiny_config(LLAMA))}
    return build_model(family, tiny_config(LLAMA), bound, kernels, max_position=MAX_MODEL_LEN)


def head_file(right: bool, ids: Sequence[int] | None = None, seed: int = 7) -> DraftHeadFile:
    """right: for the foreseen model; it passes the token's embedding on."""
    target = tiny_config(LLAMA)
    ids = range(target.vocab_size) if ids is None else ids
    config = DraftHeadConfig(
        hidden_size=target.hidden_size,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        rms_norm_eps=target.rms_norm_eps,
        rope=RopeConfig(10000.0, 16),
        vocab_size=target.vocab_size,
        draft_vocab_size=len(ids),
        target="tiny",
        fingerprint="0" * 32,
    )
    generator = np.random.default_rng(seed)
    weights = {name: _values(generator, shape) for name, shape in config.shapes().items()}
    if right:
        identity = np.eye(target.hidden_size, dtype=np.float32)
        weights["fc.weight"] = np.concatenate([0 * identity, identity], axis=1)
        weights["layer.self_attn.o_proj.weight"] *= 0
        weights["layer.mlp.down_proj.weight"] *= 0
        weights["norm.weight"] = target_weights(True)["model.norm.weight"]
    return DraftHeadFile(Path("head"), config, weights, np.array(ids, np.int32))


class SpyHead:
    """A runner of the head that remembers what it was fed and what came of it."""

    def __init__(self, runner: HeadRunner) -> None:
        self._runner = runner
        self.hidden_size = runner.hidden_size
        self.steps: list[list[HeadRow]] = []
        self.results: list[tuple[RowResult, ...]] = []
        self.made: list[list[Any]] = []

    def run(self, rows: Sequence[HeadRow]) -> tuple[tuple[RowResult, ...], list[Any]]:
        self.steps.append(list(rows))
        results, made = self._runner.run(rows)
        self.results.append(results)
        self.made.append(made)
        return results, made

    def rows(self, name: str) -> list[HeadRow]:
        return [row for step in self.steps for row in step if row.plan.request_id == name]


class Head:
    """Give `make` and `states` to a TinyEngine over `target`, as `engine` does."""

    def __init__(
        self,
        backend: str,
        *,
        right: bool = False,
        ids: Sequence[int] | None = None,
        num_tokens: int = 3,
        num_blocks: int = 100,
        max_model_len: int = MAX_MODEL_LEN,
        max_step_tokens: int = 512,
        most: int = 512,
        lookup: Proposer | None = None,
    ) -> None:
        self.backend, self.right = backend, right
        self.target = target_model(backend, right)
        self.file = head_file(right, ids)
        self.states = HeadStates(most)
        kernels, config = backend_kernels(backend), self.file.config
        rows = target_weights(right)[
            "model.embed_tokens.weight" if self.target.config.tie_word_embeddings else "lm_head.weight"
        ][self.file.draft_ids]
        output = LMHead(kernels, kernels.bind("linear", rows))
        model = DraftHead(config, kernels, bind_head(self.file, kernels), self.target.embedding, output, MAX_MODEL_LEN)
        spec = head_kv_spec(config, block_size=BLOCK_SIZE, dtype="float16" if backend == "cpu" else "float32")
        self._kv = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
        self._forward: Any = model if kernels.compile is None else kernels.compile(model, self._kv)
        self._pool = DraftPool(num_blocks, BLOCK_SIZE, max_model_len, max_step_tokens, prefix_caching=False)
        self._num_tokens, self._lookup = num_tokens, lookup
        self.runner: SpyHead
        self.drafter: HeadDrafter

    @property
    def make(self) -> Callable[[GrammarStates], SpeculativeDrafts]:
        def made(grammars: GrammarStates) -> SpeculativeDrafts:
            kernels, config = backend_kernels(self.backend), self.file.config
            runner = HeadRunner(
                self._forward,
                self._kv,
                kernels.to_numpy,
                hidden_size=config.hidden_size,
                vocab_size=config.vocab_size,
                draft_ids=self.file.draft_ids,
                grammars=GrammarStates(grammars._compiler),
                sampling=kernels.sampling,
            )
            self.runner = SpyHead(runner)
            self.drafter = HeadDrafter(self.runner, self._pool, self.states)
            control = Controller(ControlOptions(policy="fixed", num_tokens=self._num_tokens), None)
            return SpeculativeDrafts(self._lookup, control, grammars, self.drafter)

        return made

    def engine(self, **settings: Any) -> TinyEngine:
        return TinyEngine(self.target, backend=self.backend, drafts=self.make, states=self.states, **settings)

    def plain(self, **settings: Any) -> TinyEngine:
        return TinyEngine(self.target, backend=self.backend, **settings)

    def fed(self, name: str) -> list[int]:
        """How many positions of the request each of the head's steps took."""
        return [len(row.plan.tokens) for row in self.runner.rows(name)]

    def idle(self) -> None:
        """Prove that nothing is kept of requests that have ended."""
        self.drafter.check()
        assert self.drafter._kv.usage().used == 0
        assert not self.drafter._followers
        assert not self.states._kept
