"""`slipstream bench micro`: single steps, op by op, against the machine's ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from slipstream.bench.micro import StepResult, measure_native, measure_plain
from slipstream.bench.steps import Step, parse_steps
from slipstream.cli.bench_files import check_writable, write_result
from slipstream.cli.parameters import Argument, Option
from slipstream.cli.render import note
from slipstream.config.env import read_environment
from slipstream.errors import UsageError
from slipstream.hub.store import packed_dir, resolve_model
from slipstream.hw.info import read_hardware
from slipstream.kernels.cpu.native import ThreadPool, kernel_sets
from slipstream.kernels.select import ModelNeeds, backend_refusals, select_kernels
from slipstream.kernels.table import Kernels
from slipstream.models.build import load_model
from slipstream.models.family import Model
from slipstream.models.registry import find_family, read_config
from slipstream.weights.open import open_checkpoint


def micro(
    model: Annotated[str, Argument(metavar="MODEL", help="A pulled name, a file or a folder.")],
    *,
    decode: Annotated[str, Option(metavar="NxC,...", help="Decode steps: sequences x tokens cached.")] = (
        "1x128,4x128,16x128,32x128,1x1024,8x1024"
    ),
    prefill: Annotated[str, Option(metavar="N,...", help="Prefill steps: tokens of one prompt.")] = "128,512",
    backend: Annotated[str, Option(help="auto, cpu or reference.")] = "auto",
    num_threads: Annotated[int | None, Option(help="Processor threads.")] = None,
    seconds: Annotated[float, Option(help="Spent on each kind of step, after one to warm up.")] = 1.5,
    output: Annotated[Path | None, Option(metavar="FILE", help="Write everything as JSON.")] = None,
    json_: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time single steps of a model by operation: GB/s, multiply-adds/s, and their share of what this machine reaches.

    The ceilings (reading memory, multiplying int8 and float32) are measured before and after each kind of step. Times
    of ops are each one's best, so that they add up to what a step takes on a machine that does nothing else.
    """
    steps = parse_steps(decode, prefill)
    if not seconds > 0:
        raise UsageError("must be above 0.", where="--seconds")
    check_writable(output)
    threads = _threads(num_threads)
    loaded, kernels, limit = _load(model, backend, threads, steps)
    left_out = [step for step in steps if step.length > limit]
    if len(left_out) == len(steps):
        names = ", ".join(step.name for step in left_out)
        raise UsageError(f"the model has {limit} positions, too few for {names}.", fix="Give shorter steps.")
    for step in left_out:
        note(f"note: {step.name} is left out: the model has {limit} positions")
    pool = ThreadPool(threads)
    native = kernels.name == "cpu"
    if not native:
        note(f"note: the {kernels.name} backend runs op by op without a profile: no times of ops, GB/s or ceilings")
    if not json_:
        kernel_set = f", {kernel_sets()[0]} kernels" if native else ""
        print(f"{model}: {kernels.name} backend{kernel_set}, {threads} thread{'s' if threads > 1 else ''}", flush=True)
    results = []
    for step in steps:
        if step not in left_out:
            result = (
                measure_native(loaded, kernels, pool, step, seconds)
                if native
                else measure_plain(loaded, kernels, step, seconds)
            )
            results.append(result)
            if not json_:
                print("\n".join(_lines(result)), flush=True)
    if any(_exceeds_ceiling(result) for result in results):
        note(
            "note: shares above 100 %: ceilings are measured before and after a step's runs and drift, most of all on "
            "a machine that others use; and what stays in a cache is read faster than memory"
        )
    data = msgspec.json.encode({"model": model, "backend": kernels.name, "threads": threads, "steps": results})
    if output is not None:
        write_result(output, data)
    if json_:
        print(msgspec.json.format(data, indent=1).decode())


def _threads(asked: int | None) -> int:
    """As many as `generate` would use."""
    hardware = read_hardware()
    if asked is None:
        return hardware.recommended_threads
    if not 1 <= asked <= 1024:
        raise UsageError(f"must be from 1 to 1024, got {asked}.", where="--num-threads")
    if asked > hardware.usable_cpus:
        note(f"note: {hardware.usable_cpus} threads (asked: {asked}): no more processors are usable")
        return hardware.usable_cpus
    return asked


def _load(model: str, backend: str, threads: int, steps: tuple[Step, ...]) -> tuple[Model, Kernels, int]:
    """The bound model, its ops, and how many positions it has."""
    cache_dir = read_environment().cache_dir
    checkpoint = open_checkpoint(resolve_model(model, cache_dir))
    try:
        config = read_config(find_family(checkpoint), checkpoint)
        refusal = backend_refusals(ModelNeeds(config.head_dim))["cpu"]
        if backend == "cpu" and refusal is not None:
            raise UsageError(f"cpu cannot run this model: {refusal}.", where="--backend", fix="Use reference.")
        if backend == "auto" and refusal is not None:
            note(f"note: auto is reference here, because of cpu: {refusal}")
            backend = "reference"
        kernels = select_kernels(backend, num_threads=threads)
        limit = config.max_position_embeddings
        length = min(limit, max(step.length for step in steps))
        folder = packed_dir(cache_dir) if kernels.name == "cpu" else None
        return load_model(checkpoint, kernels, max_position=length, packed_folder=folder), kernels, limit
    finally:
        checkpoint.close()


def _lines(result: StepResult) -> list[str]:
    rate = result.num_tokens / result.median
    first = f"{result.name}: median {_ms(result.median)}, best {_ms(result.best)}, {rate:.0f} tokens/s"
    limits = result.ceilings
    if limits is None or result.floor is None:
        return [f"{first} over {result.steps} steps"]
    lines = [
        f"{first} over {result.steps} steps; "
        f"floor {_ms(result.floor)} = {result.num_tokens / result.floor:.0f} tokens/s",
        f"  ceilings: read {limits.read / 1e9:.1f} GB/s, int8 {limits.maddubs / 1e9:.0f} GMAC/s, "
        f"float32 {limits.fma / 1e9:.0f} GMAC/s",
        f"  {'op':<16} {'calls':>5} {'ms':>9} {'share':>6} {'GB/s':>7} {'of read':>8} {'GMAC/s':>8} "
        f"{'of multiply':>12}",
    ]
    for op in result.ops:
        known = op.num_bytes is not None and op.macs is not None
        assert not known or (op.read_share is not None and op.multiply_share is not None)
        numbers = (
            f"{(op.num_bytes or 0) / op.seconds / 1e9:7.1f} {op.read_share or 0:8.0%} "
            f"{(op.macs or 0) / op.seconds / 1e9:8.1f} {op.multiply_share or 0:12.0%}"
            if known
            else f"{'-':>7} {'-':>8} {'-':>8} {'-':>12}"
        )
        share = op.seconds / result.floor
        lines.append(f"  {op.name:<16} {op.count:>5} {1000 * op.seconds:9.3f} {share:6.0%} {numbers}")
    read, macs = result.total("num_bytes") / result.floor, result.total("macs") / result.floor
    lines.append(
        f"  {'all':<16} {'':>5} {1000 * result.floor:9.3f} {1:6.0%} {read / 1e9:7.1f} {read / limits.read:8.0%} "
        f"{macs / 1e9:8.1f} {_multiply_share(result):12.0%}"
    )
    return lines


def _exceeds_ceiling(result: StepResult) -> bool:
    """As shown, in whole per cent."""
    shares = [share or 0.0 for op in result.ops for share in (op.read_share, op.multiply_share)]
    if result.ceilings is not None and result.floor is not None:
        shares.append(result.total("num_bytes") / result.floor / result.ceilings.read)
    return any(round(100 * share) > 100 for share in shares)


def _multiply_share(result: StepResult) -> float:
    return sum((op.multiply_share or 0.0) * op.seconds for op in result.ops) / (result.floor or 1.0)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
