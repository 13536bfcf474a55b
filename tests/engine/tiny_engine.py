"""Engines over tiny real models with random weights, built without any file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from tests.models.hf_configs import TINY

from slipstream.engine.core import EngineCore
from slipstream.engine.drafts import DraftProposer
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.plan import PlanRow, StepPlan, StepResult
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from slipstream.engine.queue import QueuePolicy
from slipstream.engine.runner import ModelRunner, StatesSink
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.kernels.select import select_kernels
from slipstream.kernels.table import Kernels
from slipstream.kv.manager import KVManager
from slipstream.kv.storage import KVStorage
from slipstream.models.build import build_model, kv_spec
from slipstream.models.config import ModelConfig
from slipstream.models.family import Family, Model
from slipstream.models.reader import Reader
from slipstream.models.registry import FAMILIES
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.states import GrammarStates
from slipstream.sampling.params import SamplingParams

BACKENDS = ("reference", "cpu")
MAX_MODEL_LEN = 120
WINDOW = 6


class Characters:
    """A tokenizer of one two-byte character per token; a space is the last of the tiny models' tokens."""

    special_ids: frozenset[int] = frozenset()
    strips_leading_space = False

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        return [98 if char == " " else ord(char) - 0x100 for char in text]

    def token_bytes(self, token_id: int) -> bytes:
        return chr(0x100 + token_id).encode()


def spell(tokens: Sequence[int]) -> str:
    return "".join(chr(0x100 + token) for token in tokens)


def family_of(architecture: str) -> Family:
    return next(family for family in FAMILIES if architecture in family.hf_architectures)


@cache
def tiny_config(architecture: str) -> ModelConfig:
    return family_of(architecture).from_hf(Reader({"architectures": [architecture]} | TINY[architecture], "test"))


@cache
def backend_kernels(backend: str) -> Kernels:
    return select_kernels(backend, num_threads=1)


@cache
def tiny_model(
    architecture: str = "LlamaForCausalLM",
    *,
    window: bool = False,
    soft_cap: bool = False,
    seed: int = 0,
    backend: str = "reference",
) -> Model:
    """`window`: every layer sees the last WINDOW tokens; `soft_cap`: scores and logits are capped."""
    kernels = backend_kernels(backend)
    family, config = family_of(architecture), tiny_config(architecture)
    if window:
        config = replace(config, windows=(WINDOW,) * config.num_layers)
    if soft_cap:
        config = replace(config, attention_soft_cap=0.5, final_soft_cap=2.0)
    generator = np.random.default_rng(seed)
    weights = {slot.name: kernels.bind(slot.kind, _values(generator, slot.shape)) for slot in family.slots(config)}
    return build_model(family, config, weights, kernels, max_position=MAX_MODEL_LEN)


def _values(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    noise = generator.standard_normal(shape, dtype=np.float32)
    # Large enough for every layer to change what comes next; small ones make a model repeat its last token.
    return 1 + 0.2 * noise if len(shape) == 1 else 2 * noise * np.float32(shape[-1] ** -0.5)


class Spy:
    """A runner that remembers the plans."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._runner.execute(plan)

    def rows(self, name: str) -> list[PlanRow]:
        return [row for plan in self.plans for row in plan.rows if row.request_id == name]


class TinyEngine:
    """An EngineCore over a tiny model, which must be `backend`'s. `shuffle`: free blocks come in a random order."""

    def __init__(
        self,
        model: Model | None = None,
        *,
        backend: str = "reference",
        num_blocks: int = 200,
        block_size: int = 4,
        caching: bool = False,
        kv_dtype: str | None = None,
        shuffle: int | None = None,
        policy: QueuePolicy | None = None,
        cost_model: object | None = None,
        drafts: Callable[[GrammarStates], DraftProposer] | None = None,
        eos: Sequence[int] = (),
        seed: int | None = 0,
        judge_drafts: bool = False,
        states: StatesSink | None = None,
        **settings: object,
    ) -> None:
        kernels = backend_kernels(backend)
        model = model or tiny_model(backend=backend)
        dtype = kv_dtype or ("float16" if backend == "cpu" else "float32")
        spec = kv_spec(model.config, block_size=block_size, dtype=dtype)
        self.kv = KVManager(num_blocks, block_size, caching)
        if shuffle is not None:
            _shuffle(self.kv, shuffle)
        values = SchedulerSettings(**({"max_num_batched_tokens": 256, "watermark": 0.0} | settings))  # type: ignore[arg-type]
        storage = KVStorage(spec, num_blocks, kernels.new_kv(spec, num_blocks))
        given: Any = model if states is None else model.with_hidden_states((model.config.num_layers - 1,))
        forward = given if kernels.compile is None else kernels.compile(given, storage)
        grammars = GrammarCompiler(Characters(), model.config.vocab_size, eos)
        grammar_states = GrammarStates(grammars)
        self.runner = Spy(ModelRunner(forward, storage, kernels.to_numpy, grammar_states, kernels.sampling, states))
        proposer = None if drafts is None else drafts(grammar_states)
        scheduler = Scheduler(values, self.kv, policy=policy, cost_model=cost_model, proposer=proposer)  # type: ignore[arg-type]
        self.core = EngineCore(
            scheduler,
            self.runner,
            tokenizer=Characters(),  # type: ignore[arg-type]
            vocab_size=model.config.vocab_size,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=eos,
            seed=seed,
            judge_drafts=judge_drafts,
            clock=lambda: 0.0,
            grammars=grammars,
        )
        self.outputs: dict[str, RequestOutput] = {}

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        speculative: RequestSpeculation | None = None,
        tenant: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.core.add(
            GenerationRequest(
                name,
                tuple(prompt),
                params,
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
                speculative=speculative,
            )
        )
        self.outputs[name] = RequestOutput.empty(name, None, tuple(prompt), params.n)

    def step(self) -> None:
        for delta in self.core.step():
            self.outputs[delta.request_id].add(delta)
        self.core.check_integrity()

    def abort(self, name: str) -> None:
        for delta in self.core.abort(name):
            self.outputs[delta.request_id].add(delta)
        self.core.check_integrity()

    def run(self) -> None:
        while self.core.has_work:
            self.step()
        assert self.core.stats().kv_blocks_used == 0

    def answer(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[RequestOutput]:
        """All in one batch."""
        first = len(self.outputs)
        for i, (prompt, params) in enumerate(requests, first):
            self.add(f"r{i}", prompt, params)
        self.run()
        return [self.outputs[f"r{i}"] for i in range(first, first + len(requests))]

    def alone(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[RequestOutput]:
        return [self.answer([each])[0] for each in requests]


def _shuffle(kv: KVManager, seed: int) -> None:
    """Take every block and give them back in a random order; the last one given back is the next one taken."""
    order = np.random.default_rng(seed).permutation(kv.num_blocks).tolist()
    for _ in order:
        kv._pool.take()
    for block in order:
        kv._pool.release(block, cached=False)
    assert kv.free_order() == order[::-1]


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]
