"""Minutes of random load on one engine: does its memory grow, and does everything come back?

    python -m benchmarks.sustained MODEL [--minutes 30] [--concurrency 12] [--seed 0] [--json] [--out DIR]

Requests of random length, sampling settings, priorities and seeds run at once; some are aborted on the way and some
have a deadline that they miss. Resident memory is sampled every second. The verdict looks at the second half only,
after caches and pools have reached their size: memory grows if its slope there, with a 95 % interval (one value per
thirtieth of that half), lies above --limit KiB per minute. One second of growth by a MiB or more is set aside and
named: a buffer grows to the largest step so far. More such seconds count in full. Every block of the KV cache must be
free at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.program import run_program
from slipstream import AsyncEngine, GenerationRequest, SamplingParams
from slipstream.bench.stats import student_t
from slipstream.bench.svg import Chart, Point, Series, draw
from slipstream.errors import SlipstreamError
from slipstream.hw.memory import process_memory

ROOT = Path(__file__).parent.parent
PARTS = 30  # of the second half
NUM_BLOCKS = 256  # few, so that all have been touched early: memory is resident from the first touch on


JUMP = 2**20  # bytes within a second


@dataclass(frozen=True)
class Trend:
    """KiB per minute, with a 95 % interval."""

    slope: float
    low: float
    high: float


def trend(samples: list[tuple[float, int]]) -> Trend | None:
    """Least squares over the means of PARTS equal stretches of the second half of (seconds, bytes); neighbouring
    samples are too alike to count each. None if there are fewer than three stretches with a sample."""
    half = [each for each in samples if each[0] >= samples[-1][0] / 2]
    start, width = half[0][0], (half[-1][0] - half[0][0]) / PARTS
    parts: dict[int, list[tuple[float, int]]] = {}
    for time, memory in half:
        parts.setdefault(min(int((time - start) / width), PARTS - 1) if width > 0 else 0, []).append((time, memory))
    x = np.array([np.mean([time for time, _ in each]) / 60 for each in parts.values()])
    y = np.array([np.mean([memory for _, memory in each]) / 1024 for each in parts.values()])
    if len(x) < 3:
        return None
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    left = y - y.mean() - slope * (x - x.mean())
    half_width = student_t(len(x) - 2) * math.sqrt(float((left**2).sum()) / (len(x) - 2) / spread)
    return Trend(slope, slope - half_width, slope + half_width)


def without_jump(samples: list[tuple[float, int]]) -> tuple[list[tuple[float, int]], tuple[float, int] | None]:
    """Samples of (seconds, bytes) less the one jump of the second half, and that jump; as they are if it has none or
    several."""
    half = samples[-1][0] / 2
    found = [
        (time, memory - before)
        for (_, before), (time, memory) in pairwise(samples)
        if time > half and memory - before >= JUMP
    ]
    if len(found) != 1:
        return samples, None
    at, size = found[0]
    return [(time, memory - size if time >= at else memory) for time, memory in samples], found[0]


def random_request(rng: random.Random, number: int, vocab: int, longest: int) -> GenerationRequest:
    """Mostly short, now and then long; every setting that a request can have is drawn."""
    prompt = min(longest // 2, int(rng.lognormvariate(4, 1.2)) + 1)
    output = min(longest - prompt, int(rng.lognormvariate(3, 1)) + 1)
    shared = random.Random(rng.randrange(8))  # one of eight beginnings, for the prefix cache
    ids = [shared.randrange(100, vocab) for _ in range(min(48, prompt))]
    ids += [rng.randrange(100, vocab) for _ in range(prompt - len(ids))]
    params = SamplingParams(
        max_tokens=output,
        n=rng.choice((1, 1, 1, 2)),
        temperature=rng.choice((0.0, 0.7, 1.0)),
        top_p=rng.choice((1.0, 0.9)),
        top_k=rng.choice((0, 40)),
        min_p=rng.choice((0.0, 0.05)),
        repetition_penalty=rng.choice((1.0, 1.1)),
        seed=rng.choice((None, number)),
        logprobs=rng.choice((None, None, 3)),
        stop=rng.choice(((), ("the",))),
        ignore_eos=rng.random() < 0.5,
    )
    timeout = rng.uniform(0.2, 5) if rng.random() < 0.05 else None
    return GenerationRequest(f"load-{number}", tuple(ids), params, priority=rng.randrange(4), timeout=timeout)


async def client(engine: AsyncEngine, rng: random.Random, numbers: Any, until: float, ends: Counter[str]) -> None:
    assert engine.tokenizer is not None
    vocab = engine.tokenizer.vocab_size
    while monotonic() < until:
        request = random_request(rng, next(numbers), vocab, 768)
        leave_after = rng.randrange(1, 20) if rng.random() < 0.15 else None
        abort_after = rng.randrange(1, 20) if rng.random() < 0.1 else None
        reasons: list[str] = []
        try:
            async with contextlib.aclosing(engine.generate(request)) as stream:  # type: ignore[type-var]
                count = 0
                async for delta in stream:
                    count += 1
                    if delta.finish_reason is not None:
                        reasons.append(delta.finish_reason)
                    if count == abort_after:
                        await engine.abort(request.request_id)
                    if count == leave_after:
                        reasons.append("left by the client")
                        break
        except SlipstreamError as error:
            reasons.append(type(error).__name__)
        ends.update(reasons)


async def watch(samples: list[tuple[float, int]], every: float) -> None:
    start = monotonic()
    while True:
        samples.append((monotonic() - start, process_memory().current))
        await asyncio.sleep(every)


async def run(model: str, minutes: float, concurrency: int, seed: int, threads: int | None) -> dict[str, Any]:
    engine = AsyncEngine.load(
        model, max_model_len=1024, max_num_seqs=8, num_blocks=NUM_BLOCKS, policy="priority", num_threads=threads
    )
    try:
        samples: list[tuple[float, int]] = []
        ends: Counter[str] = Counter()
        numbers = iter(range(10**9))
        before = engine.stats()
        until = monotonic() + 60 * minutes
        watcher = asyncio.create_task(watch(samples, 1.0))
        clients = [
            client(engine, random.Random(f"{seed} {number}"), numbers, until, ends) for number in range(concurrency)
        ]
        await asyncio.gather(*clients)
        watcher.cancel()
        while engine.stats().num_running or engine.stats().num_waiting:
            await asyncio.sleep(0.05)
        stats = engine.stats()
    finally:
        await engine.close()
    return {
        "model": model,
        "minutes": minutes,
        "concurrency": concurrency,
        "seed": seed,
        "requests": next(numbers),
        "ends": dict(ends.most_common()),
        "steps": stats.num_steps,
        "prompt_tokens": stats.num_prompt_tokens,
        "output_tokens": stats.num_output_tokens,
        "preemptions": stats.num_preemptions,
        "cached_tokens": stats.num_cached_tokens,
        "blocks_used_before": before.kv_blocks_used,
        "blocks_used_after": stats.kv_blocks_used,
        "memory": [(round(time, 2), memory) for time, memory in samples],
    }


def verdict(result: dict[str, Any], limit: float) -> dict[str, Any]:
    samples, jump = without_jump(result["memory"])
    found = trend(samples)
    leaks = result["blocks_used_after"] - result["blocks_used_before"]
    if found is None:
        memory = "too short to say"
    elif found.low > limit:
        memory = f"grows by {found.slope:.0f} KiB per minute"
    else:
        memory = f"no growth beyond {limit:.0f} KiB per minute"
        if found.high > limit:
            memory = f"growth beyond {limit:.0f} KiB per minute is neither shown nor ruled out"
    slope = None if found is None else [round(each, 1) for each in (found.slope, found.low, found.high)]
    if jump is not None:
        memory += f", beside one jump of {jump[1] / 2**20:.1f} MiB after {jump[0] / 60:.0f} minutes"
    return {"slope_kib_per_minute": slope, "jump": jump, "memory_verdict": memory, "blocks_left": leaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--limit", type=float, default=256.0, help="KiB per minute that count as growth")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sustained", help="folder for JSON and plot")
    args = parser.parse_args()
    result = asyncio.run(run(args.model, args.minutes, args.concurrency, args.seed, args.threads))
    result |= verdict(result, args.limit)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "sustained.json").write_text(json.dumps(result) + "\n")
    points = tuple(Point(time / 60, memory / 2**20) for time, memory in result["memory"])
    chart = draw(Chart("Resident memory under random load", "minutes", "MiB", (Series("memory", points, steps=True),)))
    (args.out / "sustained.svg").write_text(
        chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" fill="none" stroke="#345" ', 1)
    )
    if args.json:
        print(json.dumps(result))
        return
    ends = ", ".join(f"{count} {reason}" for reason, count in result["ends"].items())
    print(f"{result['requests']} requests in {args.minutes:g} minutes: {ends}")
    print(
        f"{result['steps']} steps, {result['prompt_tokens']} + {result['output_tokens']} tokens, "
        f"{result['cached_tokens']} from the prefix cache, {result['preemptions']} preemptions"
    )
    first, last = result["memory"][0][1], result["memory"][-1][1]
    peak = max(memory for _, memory in result["memory"])
    print(f"memory {first / 2**20:.0f} MiB at the start, {last / 2**20:.0f} at the end, {peak / 2**20:.0f} at most")
    print(f"slope of the second half {result['slope_kib_per_minute']} KiB per minute: {result['memory_verdict']}")
    print(f"blocks of the KV cache that did not come back: {result['blocks_left']}")


if __name__ == "__main__":
    run_program(main)
