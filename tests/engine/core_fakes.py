"""An EngineCore over the fake model, with letters for tokens and a clock that ticks once per reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling_fakes import VOCABULARY, FakeModel
from scheduling_loop import Proposer

from slipstream.engine.core import EngineCore
from slipstream.engine.outputs import OutputDelta, RequestOutput
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.request import Request
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.kv.manager import KVManager
from slipstream.sampling.params import SamplingParams


class Letters:
    """Token 0 is "a", token 1 "b", ..."""

    special_ids: frozenset[int] = frozenset()
    strips_leading_space = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([ord("a") + token_id])


def spell(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


class FakeRunner:
    """Runs the fake model; `raises` holds errors to be raised by the next steps instead (None: no error)."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.plans: list[StepPlan] = []
        self.raises: list[BaseException | None] = []
        self.answer: Callable[[StepPlan], StepResult] = model.run

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return self.answer(plan)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A core, and what its deltas add up to."""

    def __init__(
        self,
        blocks: int = 64,
        *,
        tokenizer: object | None = None,
        drafts: Callable[[Request], Sequence[int]] | None = None,
        eos: Sequence[int] = (),
        seed: int | None = None,
        max_model_len: int = 200,
        caching: bool = True,
        **settings: object,
    ) -> None:
        values = SchedulerSettings(**({"watermark": 0.0} | settings))  # type: ignore[arg-type]
        self.kv = KVManager(blocks, 4, caching)
        self.scheduler = Scheduler(values, self.kv, proposer=Proposer(drafts) if drafts else None)
        self.runner = FakeRunner(FakeModel(4, values.max_num_batched_tokens, values.max_num_seqs))
        self.clock = Clock()
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            tokenizer=tokenizer,  # type: ignore[arg-type]
            vocab_size=VOCABULARY,
            max_model_len=max_model_len,
            eos_token_ids=eos,
            seed=seed,
            clock=self.clock,
        )
        self.outputs: dict[str, RequestOutput] = {}

    def add(self, name: str, prompt: Sequence[int] = (1, 2, 3), *, timeout: float | None = None, **params: object):
        values = {"max_tokens": 4, "seed": 0} | params
        request = GenerationRequest(name, tuple(prompt), SamplingParams(**values), timeout=timeout)  # type: ignore[arg-type]
        self.core.add(request)
        self.outputs[name] = RequestOutput.empty(name, None, request.prompt_token_ids, request.params.n)
        return self.outputs[name]

    def take(self, deltas: Sequence[OutputDelta]) -> list[OutputDelta]:
        for delta in deltas:
            assert self.outputs[delta.request_id].outputs[delta.index].finish_reason is None, "a delta after the last"
            self.outputs[delta.request_id].add(delta)
        self.core.check_integrity()
        return list(deltas)

    def step(self) -> list[OutputDelta]:
        self.clock.now += 1.0
        return self.take(self.core.step())

    def run(self) -> None:
        for _ in range(1000):
            if not self.core.has_work:
                assert self.core.stats().kv_blocks_used == 0
                assert not self.core.open_request_ids
                return
            self.step()
        raise AssertionError("no end in sight")
