"""Layers with experts against the machine's ceilings, with random weights.

    python -m benchmarks.moe [--threads 2] [--layers 2] [--experts 64] [--top-k 8] [--hidden 2048] [--inner 768]
                             [--tokens 128] [--seconds 3]

INT4 weights in groups of 32 with a scale and a minimum (Q4_1); the defaults are the layers of Qwen3-30B-A3B with half
its experts. A random router chooses by each token's own input, so that experts get uneven shares.
`read`: share of a four-stream read of memory reached over the bytes of the experts that are really used; `multiply`:
share of the maddubs-and-add rate. Times are sums of the expert ops' own best, grouping and summing included. What
`benchmarks.larger_shapes` says about a busy machine holds here too.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.larger_shapes import NOWHERE, READ_BYTES, random_matrix
from benchmarks.program import run_program
from slipstream.kernels.cpu.native import Program, ThreadPool, ceilings, kernel_sets

VOCABULARY = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    experts: int
    top_k: int
    hidden: int
    inner: int

    @property
    def macs(self) -> int:
        """Of one expert and one row."""
        return 3 * self.hidden * self.inner

    @property
    def expert_bytes(self) -> int:
        return self.macs // 32 * 20


def record(shape: Shape, pool: ThreadPool) -> tuple[Program, list[int]]:
    """(the program, the buffers of the layers' routings)."""
    rng = np.random.default_rng(0)
    program = Program(pool, kernel_sets()[0])
    h = shape.hidden
    x, wide = program.add_rows(0, h), program.add_tiles(0, h)
    normed, logits = program.add_rows(0, h), program.add_rows(0, shape.experts)
    program.embed(random_matrix(VOCABULARY, h, pool, rng), 1.0, (x, 0))
    ones = np.ones(h, np.float32)
    routings = []
    for _ in range(shape.layers):
        routing, out = program.add_rows(0, 2 * shape.top_k), program.add_rows(0, h)
        router = random_matrix(shape.experts, h, pool, rng)
        experts = [
            (
                random_matrix(shape.inner, h, pool, rng),
                random_matrix(shape.inner, h, pool, rng),
                random_matrix(h, shape.inner, pool, rng),
            )
            for _ in range(shape.experts)
        ]
        program.token(0, h, (x, 0), False, None, 0.0, 1.0, NOWHERE, NOWHERE, ones, 1e-6, (normed, 0), wide)
        program.linear(0, wide, NOWHERE, [(router, None, NOWHERE, (logits, 0), 0.0)])
        program.route(shape.experts, shape.top_k, True, (logits, 0), (routing, 0))
        program.experts(shape.top_k, "silu", (normed, 0), (routing, 0), (out, 0), experts)
        routings.append(routing)
        x = out
    return program, routings


def floor_seconds(program: Program, tokens: int, seconds: float) -> float:
    """The sum of the expert ops' own best times, always for the same tokens."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, tokens).astype(np.int32)
    places, bounds = np.arange(tokens, dtype=np.int32), np.array([0, tokens], np.int32)
    table, none, out = np.zeros((1, 1), np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.float32)
    best: dict[int, float] = {}
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < until:
        program.set_profiling(True)
        program.run(ids, places, np.zeros(tokens, np.int32), bounds, bounds[1:], table, none, out)
        for op, (name, taken) in enumerate(program.profile()):
            if name == "experts":
                best[op] = min(taken, best.get(op, taken))
        rounds += 1
    return sum(best.values())


def used_experts(program: Program, routings: list[int], tokens: int, top_k: int) -> int:
    """How many experts the last step read, over all layers."""
    rows = np.empty((tokens, 2 * top_k), np.float32)
    count = 0
    for routing in routings:
        program.copy_rows(routing, rows)
        count += len(np.unique(rows[:, top_k:]))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0, help="per kind of step")
    args = parser.parse_args()
    shape = Shape(args.layers, args.experts, args.top_k, args.hidden, args.inner)
    pool = ThreadPool(args.threads)
    program, routings = record(shape, pool)
    limits = {"maddubs": 0.0, "fma": 0.0, "read": 0.0}
    for tokens in (1, 4, args.tokens):
        for name, rate in ceilings(pool, kernel_sets()[0], READ_BYTES, 10):
            limits[name] = max(limits[name], rate)
        taken = floor_seconds(program, tokens, args.seconds)
        used = used_experts(program, routings, tokens, shape.top_k)
        read = used * shape.expert_bytes / taken
        multiply = shape.layers * tokens * shape.top_k * shape.macs / taken
        shares = read / limits["read"], multiply / limits["maddubs"]
        print(
            f"{tokens} tokens: {taken * 1e3:.2f} ms, {used / shape.layers:.0f} experts per layer, "
            f"{read / 1e9:.1f} GB/s ({shares[0]:.0%} of read), {multiply / 1e9:.0f} GMAC/s "
            f"({shares[1]:.0%} of maddubs)",
            flush=True,
        )


if __name__ == "__main__":
    run_program(main)
