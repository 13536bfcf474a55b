"""One step of the CPU backend against what the machine can do, measured in the same minute.

    python -m benchmarks.native_step MODEL.gguf [--threads 2] [--seconds 1.5] [--json]

A fixed set of steps, one line each; `slipstream bench micro` measures any, op by op, with the same code. Times are
medians and bests of single steps, logits included. `read` is the share of a plain four-stream read of memory that
weights and KV reach; `multiply` the share of the maddubs-and-add rate. `floor` adds up every op's own best time: what
a step takes on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.program import run_program
from slipstream.bench.micro import StepResult, measure_native
from slipstream.bench.steps import Step
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import ThreadPool
from slipstream.models.build import load_model
from slipstream.weights.open import open_checkpoint

STEPS = (
    Step("decode 1", 1, 128, 1),
    Step("decode 4", 4, 128, 1),
    Step("decode 16", 16, 128, 1),
    Step("decode 32", 32, 128, 1),
    Step("2 tokens", 1, 128, 2),
    Step("4 tokens", 1, 128, 4),
    Step("8 tokens", 1, 128, 8),
    Step("prefill 512", 1, 0, 512),
    Step("decode 1 at 4096", 1, 4096, 1),
    Step("decode 8 at 4096", 8, 4096, 1),
)


def report(step: Step, result: StepResult) -> dict[str, Any]:
    assert result.ceilings is not None
    assert result.floor is not None
    num_bytes, macs = result.total("num_bytes"), result.total("macs")
    return {
        "step": {"name": step.name, "sequences": step.sequences, "context": step.context, "tokens": step.tokens},
        "steps": result.steps,
        "median_ms": 1e3 * result.median,
        "best_ms": 1e3 * result.best,
        "floor_ms": 1e3 * result.floor,
        "tokens_per_s": result.num_tokens / result.median,
        "best_tokens_per_s": result.num_tokens / result.best,
        "floor_tokens_per_s": result.num_tokens / result.floor,
        "ops_ms": {op.name: 1e3 * op.seconds for op in result.ops},
        "limits": {name: getattr(result.ceilings, name) for name in ("maddubs", "fma", "read")},
        "gbyte_per_s": num_bytes / result.floor / 1e9,
        "gmac_per_s": macs / result.floor / 1e9,
        "read": num_bytes / result.floor / result.ceilings.read,
        "multiply": macs / result.floor / result.ceilings.maddubs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5, help="per kind of step")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.model)
    kernels = cpu_kernels(args.threads)
    model = load_model(checkpoint, kernels, max_position=4200)
    pool = ThreadPool(args.threads)
    results = []
    for step in STEPS:
        result = report(step, measure_native(model, kernels, pool, step, args.seconds))
        results.append(result)
        if not args.json:
            print(
                f"{step.name:18} median {result['median_ms']:8.2f} ms  best {result['best_ms']:8.2f}  "
                f"floor {result['floor_ms']:8.2f} = {result['floor_tokens_per_s']:6.0f} tok/s  "
                f"{result['gbyte_per_s']:5.1f} GB/s ({result['read']:.0%} of read)  "
                f"{result['gmac_per_s']:5.1f} GMAC/s ({result['multiply']:.0%} of maddubs)",
                flush=True,
            )
    if args.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    run_program(main)
