"""A long prompt arrives while other requests decode: how long do these have to wait for their next token?

    python -m benchmarks.long_prompt MODEL [--objective 0.15] [--prompt 6000] [--streams 8] [--json]

The same run with `tpot_objective` set, as it is by default ("auto"), and off. Gaps are those between two tokens of one
stream, as its caller sees them: before the prompt arrives (what the machine does by itself), and from its arrival to
its first token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from benchmarks.program import run_program
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.params import SamplingParams

BEFORE = 30  # tokens of every stream before the prompt arrives
ALLOWED = 1.25  # times the objective

Objective = float | Literal["auto", "off"]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds."""

    objective: Objective
    p50_before: float
    p99_before: float
    p50: float
    p99: float
    worst: float
    ttft: float  # of the long prompt
    gaps: int


async def measure(engine: AsyncEngine, objective: Objective, num_streams: int, num_prompt: int) -> Result:
    vocab, rng = engine.info.vocab_size, random.Random(1)
    times: list[list[float]] = [[] for _ in range(num_streams)]
    endless = SamplingParams(temperature=0, ignore_eos=True)

    async def read(index: int) -> None:
        prompt = tuple(rng.randrange(100, vocab) for _ in range(64))
        async for _ in engine.generate(GenerationRequest(f"stream-{index}", prompt, endless)):
            times[index].append(time.monotonic())

    readers = [asyncio.ensure_future(read(index)) for index in range(num_streams)]
    while min(map(len, times)) < BEFORE:
        await asyncio.sleep(0.01)
    prompt = tuple(rng.randrange(100, vocab) for _ in range(num_prompt))
    arrived = time.monotonic()
    async for _ in engine.generate(GenerationRequest("long", prompt, SamplingParams(temperature=0, max_tokens=1))):
        pass
    answered = time.monotonic()
    while min(each[-1] for each in times) < answered:  # the step with the prompt's last chunk counts too
        await asyncio.sleep(0.01)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    pairs = [(a, b) for each in times for a, b in pairwise(each[2:])]
    before = [b - a for a, b in pairs if b < arrived]
    during = [b - a for a, b in pairs if b >= arrived and a < answered]
    p50_before, p99_before = np.percentile(before, [50, 99])
    p50, p99 = np.percentile(during, [50, 99])
    return Result(
        objective,
        float(p50_before),
        float(p99_before),
        float(p50),
        float(p99),
        max(during),
        answered - arrived,
        len(during),
    )


async def run(arguments: argparse.Namespace) -> list[Result]:
    results = []
    objectives: tuple[Objective, ...] = (arguments.objective, "auto", "off")
    for objective in objectives:
        engine = AsyncEngine.load(arguments.model, enable_prefix_caching=False, tpot_objective=objective)
        try:
            results.append(await measure(engine, objective, arguments.streams, arguments.prompt))
        finally:
            await engine.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--objective", type=float, default=0.15, help="seconds per token")
    parser.add_argument("--prompt", type=int, default=6000, help="tokens")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = asyncio.run(run(arguments))
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(
        f"{'tpot_objective':>15} {'before p50':>11} {'p99':>8} {'during p50':>11} {'p99':>8} {'worst':>8} {'TTFT':>8}"
    )
    for r in results:
        name = r.objective if isinstance(r.objective, str) else f"{1e3 * r.objective:.0f} ms"
        before = f"{1e3 * r.p50_before:8.0f} ms {1e3 * r.p99_before:5.0f} ms"
        during = f"{1e3 * r.p50:8.0f} ms {1e3 * r.p99:5.0f} ms {1e3 * r.worst:5.0f} ms"
        print(f"{name:>9} {before} {during} {r.ttft:6.1f} s")
    limit = ALLOWED * arguments.objective
    print(f"P99 with the objective: {'within' if results[0].p99 <= limit else 'ABOVE'} {1e3 * limit:.0f} ms")


if __name__ == "__main__":
    run_program(main)
