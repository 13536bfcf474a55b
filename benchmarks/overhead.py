"""What the engine does outside the native forward call, per decode step of real requests.

    python -m benchmarks.overhead MODEL [--batch 1,4,16,64] [--threads 2] [--rounds 4] [--steps 64] [--json]

Greedy requests of random tokens decode side by side; every batch size has its turn in every round. `rest` is the time
of a step less the time of the model's call: scheduling, building the batch, picking the tokens, applying them, making
outputs. `rest_cpu_ms` is the same on the clock of the thread that steps, which does not run while other work has the
processor. Shares are medians of the rest over medians of the step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.program import run_program
from slipstream.config.types import EngineOptions
from slipstream.engine.loading import load_engine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.params import SamplingParams

PROMPT = 128


class Core(Protocol):
    @property
    def has_work(self) -> bool: ...
    def add(self, request: GenerationRequest) -> None: ...
    def step(self) -> list[OutputDelta]: ...


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step: by the clock, of the model's call in it, and of the thread outside that call."""

    step: float
    forward: float
    rest_cpu: float

    @property
    def rest(self) -> float:
        return self.step - self.forward


class TimedModel:
    """Stands in front of a model and adds up the time of its calls."""

    def __init__(self, model: Callable[..., Any], wall: Callable[[], float], cpu: Callable[[], float]) -> None:
        self.wall, self.cpu = wall, cpu
        self.seconds = self.cpu_seconds = 0.0
        self._model = model

    def __call__(self, *args: Any) -> Any:
        cpu, wall = self.cpu(), self.wall()
        result = self._model(*args)
        self.seconds += self.wall() - wall
        self.cpu_seconds += self.cpu() - cpu
        return result


def decode(core: Core, model: TimedModel, requests: Sequence[GenerationRequest]) -> list[StepTime]:
    """Run the requests to their end; the steps from the one after everybody's first token to the last but one."""
    for request in requests:
        core.add(request)
    started: set[str] = set()
    while len(started) < len(requests):
        started.update(delta.request_id for delta in core.step())
    times = []
    while core.has_work:
        model.seconds = model.cpu_seconds = 0.0
        cpu, wall = model.cpu(), model.wall()
        core.step()
        step = model.wall() - wall
        times.append(StepTime(step, model.seconds, model.cpu() - cpu - model.cpu_seconds))
    return times[:-1]


def summarize(batch: int, times: Sequence[StepTime]) -> dict[str, Any]:
    rest = [each.rest for each in times]
    cpu = [each.rest_cpu for each in times]
    step = statistics.median(each.step for each in times)
    return {
        "batch": batch,
        "steps": len(times),
        "step_ms": 1e3 * step,
        "forward_ms": 1e3 * statistics.median(each.forward for each in times),
        "rest_ms": 1e3 * statistics.median(rest),
        "rest_best_ms": 1e3 * min(rest),
        "rest_cpu_ms": 1e3 * statistics.median(cpu),
        "rest_cpu_best_ms": 1e3 * min(cpu),
        "share": statistics.median(rest) / step,
    }


def _requests(rng: random.Random, name: str, batch: int, steps: int, vocab_size: int) -> list[GenerationRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=steps + 2, ignore_eos=True)
    prompts = [tuple(rng.randrange(vocab_size) for _ in range(PROMPT)) for _ in range(batch)]
    return [GenerationRequest(f"{name}-{index}", prompt, params) for index, prompt in enumerate(prompts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64, help="per batch size and round")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    batches = [int(each) for each in args.batch.split(",")]
    length = PROMPT + args.steps + 2
    options = EngineOptions.from_flat(
        model=args.model,
        backend="cpu",
        num_threads=args.threads,
        max_model_len=length,
        max_num_seqs=max(batches),
        num_blocks=max(batches) * (length // 16 + 1),
        enable_prefix_caching=False,
    )
    core = load_engine(options).core
    runner: Any = core._runner
    model = runner._model = TimedModel(runner._model, time.perf_counter, time.thread_time)
    rng = random.Random(0)
    times: dict[int, list[StepTime]] = {batch: [] for batch in batches}
    for number in range(args.rounds):
        for batch in batches:
            requests = _requests(rng, f"{number}-{batch}", batch, args.steps, core.vocab_size)
            times[batch] += decode(core, model, requests)
    results = [summarize(batch, times[batch]) for batch in batches]
    for result in results:
        if not args.json:
            print(
                "batch {batch:3}: step {step_ms:6.2f} ms, forward {forward_ms:6.2f}, rest {rest_ms:.3f} = {share:.1%} "
                "(best {rest_best_ms:.3f}; processor {rest_cpu_ms:.3f}, best {rest_cpu_best_ms:.3f})".format(**result)
            )
    if args.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    run_program(main)
