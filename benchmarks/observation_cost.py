"""What watching costs: CPU time per delivery of tokens with and without it, per page of /metrics, per trace.

python benchmarks/observation_cost.py
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.program import run_program
from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import Engine, GenerationRequest
from slipstream.server.observe.record import RequestRecord
from slipstream.server.observe.setup import observe
from slipstream.server.tracing import make_tracing

DELTAS = 20_000
RUNS = 9


class Instant(EchoEngine):
    """Delivers at once, so that nothing but the delivery is measured."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        for _ in range(DELTAS):
            yield OutputDelta(request.request_id, 0, "x", (1,))


async def per_delta(engine: Engine) -> float:
    """Microseconds."""
    start = time.process_time()
    async for _ in engine.generate(GenerationRequest("r", (1,))):
        pass
    return (time.process_time() - start) / DELTAS * 1e6


def per_call(call: Callable[[], object], times: int) -> float:
    """Microseconds."""
    call()
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times * 1e6


async def main() -> None:
    plain = Instant()
    observation = observe(plain, "m", clock=time.monotonic, wall=time.time)
    pairs = [(await per_delta(plain), await per_delta(observation.engine)) for _ in range(RUNS)]
    bare, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"per delivery: {bare:.2f} us bare, {watched:.2f} us watched (medians of {RUNS} runs of {DELTAS})")
    print(f"per page of /metrics: {per_call(observation.metrics.render, 20) / 1000:.1f} ms")
    tracing = make_tracing("http://nowhere", "m", exporter=InMemorySpanExporter())
    stats = CompletionStats(7, 4, 3, 1, 0.5, 0.75, 0.25, 1.5)
    record = RequestRecord(
        "r", 1000.0, 10.0, 7, 1, 16, first_token=10.7, last_token=11.5, end=11.5, completions=[stats]
    )
    record.received, record.delivered = 9.0, 12.0
    print(f"per traced request: {per_call(lambda: tracing.record(record, None), 300):.0f} us")


if __name__ == "__main__":
    run_program(lambda: asyncio.run(main()))
