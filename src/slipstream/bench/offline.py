"""Throughput and latency of a model in this process, through `LLM`; no server, no network.

Rounds repeat the same lengths with new random token ids, so that no prefix cache helps; the first round warms up and
is dropped. A result is the mean of the rounds with Student's interval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Literal

import msgspec

from slipstream.bench.stats import Interval, t_interval
from slipstream.bench.workload import LengthClass
from slipstream.engine.llm import LLM
from slipstream.engine.outputs import RequestOutput
from slipstream.errors import ContextLengthError, EngineError
from slipstream.hw.info import read_hardware
from slipstream.hw.memory import process_memory
from slipstream.sampling.params import SamplingParams
from slipstream.version import installed_version

FORMAT = "slipstream-bench-offline/1"
HIGHER_IS_BETTER = ("output tokens/s", "all tokens/s", "prefill tokens/s", "decode tokens/s")

Say = Callable[[str], None]


class Case(msgspec.Struct, frozen=True):
    """One thing measured. `rounds` has one number per round for each metric; times in seconds."""

    name: str
    rounds: dict[str, tuple[float, ...]]
    summary: dict[str, Interval]


class OfflineResult(msgspec.Struct, frozen=True):
    format: str
    kind: Literal["throughput", "latency"]
    name: str
    date: str
    model: str
    version: str
    machine: dict[str, str]
    settings: dict[str, str]
    in_force: dict[str, str]
    cases: tuple[Case, ...]
    peak_memory: int  # bytes, of the process


@dataclass(frozen=True, slots=True)
class Shape:
    """`batch` requests at once, each of `prompt` and `output` tokens."""

    batch: int
    prompt: int
    output: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.prompt} + {self.output} tokens"


def token_prompts(llm: LLM, lengths: Sequence[int], rng: random.Random) -> list[list[int]]:
    """Random ordinary token ids; a prompt begins as the tokenizer would begin it."""
    tokenizer = llm.tokenizer
    special, size = tokenizer.special_ids, tokenizer.vocab_size
    first = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []

    def draw() -> int:
        while (token := rng.randrange(size)) in special:
            pass
        return token

    return [[*first, *(draw() for _ in range(max(1, length - len(first))))][:length] for length in lengths]


def measure_throughput(
    llm: LLM, classes: Sequence[LengthClass], num_requests: int, rounds: int, *, seed: int = 0, say: Say = print
) -> tuple[Case, ...]:
    """`num_requests` at once, an equal share of each class. Raises ContextLengthError before any work."""
    rng = random.Random(f"lengths {seed}")
    chosen = [classes[number % len(classes)] for number in range(num_requests)]
    shapes = [(rng.randint(*each.prompt), rng.randint(*each.output)) for each in chosen]
    for prompt, output in shapes:
        _check_length(llm, prompt, output)
    params = [_params(output) for _, output in shapes]
    found: dict[str, list[float]] = {"output tokens/s": [], "all tokens/s": [], "seconds": []}
    for number in range(rounds + 1):
        prompts = token_prompts(llm, [prompt for prompt, _ in shapes], random.Random(f"tokens {seed} {number}"))
        seconds, outputs = _timed(llm, prompts, params)
        tokens = _checked(outputs, params)
        say(f"round {number}: {tokens / seconds:.1f} output tokens/s{' (warm-up, dropped)' if number == 0 else ''}")
        if number:
            found["output tokens/s"].append(tokens / seconds)
            found["all tokens/s"].append((tokens + sum(map(len, prompts))) / seconds)
            found["seconds"].append(seconds)
    name = f"{num_requests} requests, {sum(p for p, _ in shapes)} + {sum(o for _, o in shapes)} tokens"
    return (_case(name, found),)


def measure_latency(
    llm: LLM, shapes: Sequence[Shape], rounds: int, *, seed: int = 0, say: Say = print
) -> tuple[Case, ...]:
    """Means over a batch of time to first token and per token, as the engine itself measures them."""
    for shape in shapes:
        _check_length(llm, shape.prompt, shape.output)
    cases = []
    for shape in shapes:
        found: dict[str, list[float]] = {name: [] for name in ("ttft", "tpot", "e2e", "decode tokens/s")}
        params = [_params(shape.output)] * shape.batch
        for number in range(rounds + 1):
            rng = random.Random(f"tokens {seed} {number} {shape}")
            seconds, outputs = _timed(llm, token_prompts(llm, [shape.prompt] * shape.batch, rng), params)
            _checked(outputs, params)
            stats = [each.outputs[0].stats for each in outputs]
            ttft = _mean([each.ttft for each in stats if each is not None and each.ttft is not None])
            tpot = _mean([each.tpot for each in stats if each is not None and each.tpot is not None])
            if number:
                found["ttft"].append(ttft)
                found["e2e"].append(seconds)
                if shape.output > 1:
                    found["tpot"].append(tpot)
                    found["decode tokens/s"].append(shape.batch / tpot if tpot else 0.0)
        cases.append(_case(str(shape), found))
        say(f"{shape}: done")
    return tuple(cases)


def offline_result(
    kind: Literal["throughput", "latency"],
    llm: LLM,
    cases: tuple[Case, ...],
    *,
    name: str,
    model: str,
    settings: dict[str, str],
) -> OfflineResult:
    hardware = read_hardware()
    return OfflineResult(
        format=FORMAT,
        kind=kind,
        name=name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model,
        version=installed_version(),
        machine={"processor": hardware.cpu_model, "usable processors": str(hardware.usable_cpus)},
        settings=settings,
        in_force={each.field: str(each.effective) for each in llm.decisions},
        cases=cases,
        peak_memory=process_memory().peak,
    )


def _params(output: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)


def _check_length(llm: LLM, prompt: int, output: int) -> None:
    limit = llm.plan.options.max_model_len
    if prompt + output > limit:
        raise ContextLengthError(prompt, limit, num_output_tokens=output, where="the workload")


def _timed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[float, list[RequestOutput]]:
    started = perf_counter()
    outputs = llm.generate(prompts, params)
    return perf_counter() - started, outputs


def _checked(outputs: Sequence[RequestOutput], params: Sequence[SamplingParams]) -> int:
    """The output tokens in all. Raises EngineError if a request failed or gave another number than it was asked for."""
    for output, asked in zip(outputs, params, strict=True):
        [completion] = output.outputs
        if completion.error is not None or len(completion.token_ids) != asked.max_tokens:
            reason = completion.error or f"{len(completion.token_ids)} tokens instead of {asked.max_tokens}"
            raise EngineError(f"a request of the benchmark went wrong: {reason}.", where=output.request_id)
    return sum(len(each.outputs[0].token_ids) for each in outputs)


def _case(name: str, found: dict[str, list[float]]) -> Case:
    rounds = {metric: tuple(values) for metric, values in found.items() if values}
    intervals = {metric: t_interval(values) for metric, values in rounds.items()}
    return Case(name, rounds, {metric: each for metric, each in intervals.items() if each is not None})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
