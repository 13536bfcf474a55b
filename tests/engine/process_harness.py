"""Engines in processes for the tests: made, used and closed, with proof that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from slipstream.config.types import EngineOptions
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.process.engine import ProcessEngine
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.params import SamplingParams

COMMAND = (sys.executable, str(Path(__file__).with_name("process_child.py")))
PROMPT = (1, 2, 3)
QUICK = ProcessSettings(backoff=0.05, warm_up=False)


def make(process: ProcessSettings = QUICK, **child: object) -> ProcessEngine:
    return ProcessEngine(EngineOptions.from_flat(model=json.dumps(child)), process=process, command=COMMAND)


def request(name: str, prompt: tuple[int, ...] = PROMPT, **params: object) -> GenerationRequest:
    values = {"max_tokens": 4, "seed": 0} | params
    return GenerationRequest(name, prompt, SamplingParams(**values))  # type: ignore[arg-type]


async def collect(engine: ProcessEngine, item: GenerationRequest) -> list[OutputDelta]:
    return [delta async for delta in engine.generate(item)]


def tokens(deltas: list[OutputDelta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


def use(engine: ProcessEngine, scenario: Callable[[ProcessEngine], Awaitable[None]]) -> None:
    """Run a scenario and close the engine: its process must be gone, and its folder too."""

    async def main() -> None:
        try:
            await asyncio.wait_for(scenario(engine), 60)
        finally:
            pid = engine.info.pid
            await engine.close()
        assert not is_alive(pid)
        assert not engine.ready

    asyncio.run(main())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)
