"""Linear layers of larger models against the machine's ceilings, with random weights.

    python -m benchmarks.larger_shapes [--threads 2] [--layers 4] [--tokens 128] [--seconds 3]

INT4 weights in groups of 32 with a scale and a minimum (Q4_1), in the shapes of Qwen2.5-1.5B's and Llama-3-8B's layers:
q, k, v and gate, up in one op each; no attention, embedding or head. Four layers read far more than any cache holds.
`read`: share of a four-stream read of memory that one token reaches; `multiply`: share of the maddubs-and-add rate
that `--tokens` tokens reach. The ceilings are the best of short rounds before, between and after, the times the sums of
every op's best: on a busy machine both are lucky moments, and only a quiet one gives shares worth quoting.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.program import run_program
from slipstream.kernels.cpu.native import PackedMatrix, Program, ThreadPool, ceilings, kernel_sets

READ_BYTES = 96 << 20  # three times the largest cache, yet soon read
NOWHERE = (-1, 0)


@dataclass(frozen=True, slots=True)
class Shapes:
    name: str
    hidden: int
    kv: int  # columns of k, and of v
    inner: int


SHAPES = (Shapes("Qwen2.5-1.5B", 1536, 256, 8960), Shapes("Llama-3-8B", 4096, 1024, 14336))


def random_matrix(rows: int, columns: int, pool: ThreadPool, rng: np.random.Generator) -> PackedMatrix:
    blocks = rng.integers(0, 256, (rows * columns // 32, 20), dtype=np.uint8)
    blocks[:, :4] = np.array([0.01, -0.08], np.float16).view(np.uint8)
    return PackedMatrix("Q4_1", rows, columns, blocks.reshape(-1), pool)


def record(shapes: Shapes, layers: int, pool: ThreadPool) -> tuple[Program, int, int]:
    """(the program, bytes of its weights, multiply-adds per token)."""
    rng = np.random.default_rng(0)
    program = Program(pool, kernel_sets()[0])
    h, inner = shapes.hidden, shapes.inner
    table = random_matrix(16, h, pool, rng)
    x, qkv = program.add_rows(0, h), program.add_rows(0, h + 2 * shapes.kv)
    wide, deep = program.add_tiles(0, h), program.add_tiles(0, inner)
    heads = program.add_tiles(0, h)
    ones = np.ones(h, np.float32)
    program.embed(table, 1.0, (x, 0))
    num_bytes = macs = 0

    def matrix(rows: int, columns: int) -> PackedMatrix:
        nonlocal num_bytes, macs
        packed = random_matrix(rows, columns, pool, rng)
        num_bytes, macs = num_bytes + packed.nbytes, macs + rows * columns
        return packed

    def quantise(source: int, tiles: int, weight: np.ndarray[Any, np.dtype[np.float32]] | None) -> None:
        program.token(0, h, (source, 0), False, None, 0.0, 1.0, NOWHERE, NOWHERE, weight, 1e-6, NOWHERE, tiles)

    for _ in range(layers):
        quantise(x, wide, ones)
        places = ((h, 0), (shapes.kv, h), (shapes.kv, h + shapes.kv))
        program.linear(0, wide, NOWHERE, [(matrix(n, h), None, NOWHERE, (qkv, at), 0.0) for n, at in places])
        quantise(qkv, heads, None)
        program.linear(0, heads, NOWHERE, [(matrix(h, h), None, NOWHERE, (x, 0), 0.0)])
        quantise(x, wide, ones)
        program.linear_gated(0, wide, matrix(inner, h), matrix(inner, h), "silu", NOWHERE, deep)
        program.linear(0, deep, NOWHERE, [(matrix(h, inner), None, NOWHERE, (x, 0), 0.0)])
    return program, num_bytes, macs


def floor_seconds(program: Program, tokens: int, seconds: float) -> float:
    """The sum of the linears' own best times."""
    ids = np.zeros(tokens, np.int32)
    bounds, none = np.array([0, tokens], np.int32), np.zeros(0, np.int32)
    out = np.zeros((0, 0), np.float32)
    best: dict[int, float] = {}
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < until:
        program.set_profiling(True)
        program.run(
            ids, np.arange(tokens, dtype=np.int32), ids, bounds, bounds[1:], np.zeros((1, 1), np.int32), none, out
        )
        for op, (name, taken) in enumerate(program.profile()):
            if name.startswith("linear"):
                best[op] = min(taken, best.get(op, taken))
        rounds += 1
    return sum(best.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0, help="per kind of step")
    args = parser.parse_args()
    pool = ThreadPool(args.threads)
    for shapes in SHAPES:
        program, num_bytes, macs = record(shapes, args.layers, pool)
        limits = {"maddubs": 0.0, "fma": 0.0, "read": 0.0}

        def refresh(into: dict[str, float]) -> None:
            for name, rate in ceilings(pool, kernel_sets()[0], READ_BYTES, 10):
                into[name] = max(into[name], rate)

        refresh(limits)
        one = floor_seconds(program, 1, args.seconds)
        refresh(limits)
        many = floor_seconds(program, args.tokens, args.seconds)
        refresh(limits)
        read, multiply = num_bytes / one, macs * args.tokens / many
        print(
            f"{shapes.name}, {args.layers} layers of {num_bytes / args.layers / 1e6:.0f} MB: "
            f"1 token {one * 1e3:.2f} ms, {read / 1e9:.1f} GB/s ({read / limits['read']:.0%} of read); "
            f"{args.tokens} tokens {many * 1e3:.1f} ms, "
            f"{multiply / 1e9:.0f} GMAC/s ({multiply / limits['maddubs']:.0%} of maddubs)",
            flush=True,
        )


if __name__ == "__main__":
    run_program(main)
