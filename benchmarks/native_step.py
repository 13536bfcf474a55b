"""One step of the CPU backend against what the machine can do, measured in the same minute.

    python -m benchmarks.native_step MODEL.gguf [--threads 2] [--seconds 1.5] [--json]

Each kind of step runs for a while after one warm-up; times are medians and bests of single steps, logits included.
`read` is the share of a plain four-stream read of memory that weights and KV reach; `multiply` the share of the
maddubs-and-add rate. `floor` adds up every op's own best time: what a step takes on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.kernels.batch import ForwardBatch
from slipstream.kernels.cpu import cpu_kernels
from slipstream.kernels.cpu.native import ThreadPool, ceilings, kernel_sets
from slipstream.kernels.cpu.record import RecordedModel
from slipstream.kernels.table import Kernels
from slipstream.kv.storage import KVStorage
from slipstream.models.build import kv_spec, load_model
from slipstream.models.family import Model
from slipstream.weights.formats.gguf import GgufCheckpoint, open_gguf

BLOCK = 16
READ_BYTES = 256 << 20  # far more than any cache holds


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sequences: int
    context: int  # tokens already cached
    tokens: int  # fed per sequence


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


def step_batch(step: Step, vocab_size: int) -> ForwardBatch:
    """Every sequence in blocks of its own; verification wants all logits, prefill only the last."""
    blocks = -(-(step.context + step.tokens) // BLOCK)
    table = np.arange(step.sequences * blocks, dtype=np.int32).reshape(step.sequences, blocks)
    positions = np.arange(step.context, step.context + step.tokens)
    slots = table[:, positions // BLOCK] * BLOCK + positions % BLOCK
    count = step.sequences * step.tokens
    wanted = np.arange(count) if step.tokens <= 8 else np.arange(1, step.sequences + 1) * step.tokens - 1
    return ForwardBatch(
        token_ids=np.random.default_rng(0).integers(0, vocab_size, count).astype(np.int32),
        positions=np.tile(positions, step.sequences).astype(np.int32),
        slots=slots.reshape(-1).astype(np.int32),
        query_start=(np.arange(step.sequences + 1) * step.tokens).astype(np.int32),
        kv_len=np.full(step.sequences, step.context + step.tokens, np.int32),
        block_table=table,
        logits_rows=wanted.astype(np.int32),
    )


def measure(model: Model, kernels: Kernels, step: Step, seconds: float) -> dict[str, Any]:
    batch = step_batch(step, model.config.vocab_size)
    spec = kv_spec(model.config, block_size=BLOCK, dtype="float16")
    kv = KVStorage(spec, int(batch.block_table.size), kernels.new_kv(spec, int(batch.block_table.size)))
    for layer in kv.layers:
        layer.cache[:] = np.float16(0.1).view(np.uint16)
    assert kernels.compile is not None
    forward = kernels.compile(model, kv)
    assert isinstance(forward, RecordedModel)
    forward(batch, kv)
    times: list[float] = []
    best: np.ndarray[Any, np.dtype[np.float64]] | None = None
    names: list[str] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        forward.program.set_profiling(True)
        start = time.perf_counter()
        forward(batch, kv)
        times.append(time.perf_counter() - start)
        profile = forward.program.profile()
        names = [name for name, _ in profile]
        own = np.array([taken for _, taken in profile])
        best = own if best is None else np.minimum(best, own)
    assert best is not None
    ops: dict[str, float] = defaultdict(float)
    for name, taken in zip(names, best, strict=True):
        ops[name] += float(taken) * 1e3
    count = step.sequences * step.tokens
    median, floor = statistics.median(times), float(best.sum())
    return {
        "steps": len(times),
        "median_ms": median * 1e3,
        "best_ms": min(times) * 1e3,
        "floor_ms": floor * 1e3,
        "tokens_per_s": count / median,
        "best_tokens_per_s": count / min(times),
        "floor_tokens_per_s": count / floor,
        "ops_ms": dict(sorted(ops.items(), key=lambda item: -item[1])),
    }


def work(checkpoint: GgufCheckpoint, model: Model, step: Step) -> tuple[float, float]:
    """(bytes that must be read, multiply-adds of the linear layers) of one step."""
    config = model.config
    matrices = [info for info in checkpoint.tensors.values() if len(info.shape) == 2]
    heads = [info for info in matrices if info.name in ("token_embd.weight", "output.weight")]
    head = heads[-1]
    inner = [info for info in matrices if info not in heads]
    tokens = step.sequences * step.tokens
    logits = len(step_batch(step, config.vocab_size).logits_rows)
    macs = tokens * sum(a.shape[0] * a.shape[1] for a in inner) + logits * head.shape[0] * head.shape[1]
    spec = kv_spec(config, dtype="float16")
    kv_bytes = step.sequences * (step.context + step.tokens) * spec.bytes_per_token
    return float(sum(a.nbytes for a in inner) + head.nbytes + kv_bytes), float(macs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5, help="per kind of step")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    checkpoint = open_gguf(args.model)
    kernels = cpu_kernels(args.threads)
    model = load_model(checkpoint, kernels, max_position=4200)
    pool = ThreadPool(args.threads)
    results = []
    for step in STEPS:
        limits = dict(ceilings(pool, kernel_sets()[0], READ_BYTES, 3))
        result = measure(model, kernels, step, args.seconds)
        num_bytes, macs = work(checkpoint, model, step)
        seconds = result["floor_ms"] / 1e3
        result |= {
            "step": asdict(step),
            "limits": limits,
            "gbyte_per_s": num_bytes / seconds / 1e9,
            "gmac_per_s": macs / seconds / 1e9,
            "read": num_bytes / seconds / limits["read"],
            "multiply": macs / seconds / limits["maddubs"],
        }
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
    main()
