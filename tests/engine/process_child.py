"""What the tests start in place of the real engine process: the fake model, told by a JSON "model name" what to do.

starts: file that gets a line per start    fail: the start fails with this message, `fail_until` starts long
exit: the process leaves at once            say: text for stderr and stdout
sleep: seconds of every step                stick_on: a prompt's first token that makes the step last for ever
break_on: ... that makes the core break     settings: of the scheduler      blocks: of the KV pool
gate: grammars compile once this file exists; "" needs no gate, and is the default
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from core_fakes import FakeRunner, Letters
from scheduling_fakes import VOCABULARY, FakeModel

from slipstream.engine.core import EngineCore
from slipstream.engine.info import bare_info
from slipstream.engine.plan import StepPlan, StepResult
from slipstream.engine.process.child import run_child
from slipstream.engine.process.wire import Start
from slipstream.engine.protocol import EngineInfo
from slipstream.engine.recorder import TimelineRecorder
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.settings import SchedulerSettings
from slipstream.engine.warm_up import warm_up
from slipstream.errors import UnsupportedModelError
from slipstream.kv.manager import KVManager
from slipstream.sampling.grammar.spec import GrammarSpec


class Grammars:
    def __init__(self, gate: str) -> None:
        self._gate = gate

    def warm_up(self) -> None:
        """There is nothing to prepare."""

    def compile(self, spec: GrammarSpec) -> None:
        while self._gate and not Path(self._gate).exists():
            time.sleep(0.005)


def build(start: Start) -> tuple[EngineCore, EngineInfo]:
    asked: dict[str, Any] = json.loads(start.options.model.model)
    if "say" in asked:
        print(asked["say"], flush=True)
        print(asked["say"], file=sys.stderr, flush=True)
    if "linger" in asked:
        threading.Thread(target=time.sleep, args=(1e6,)).start()
    num_starts = 1
    if "starts" in asked:
        with Path(asked["starts"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
        num_starts = len(Path(asked["starts"]).read_text().splitlines())
    if "exit" in asked:
        os._exit(asked["exit"])
    if "fail" in asked and num_starts in asked.get("fail_starts", [num_starts]):
        raise UnsupportedModelError(asked["fail"], where="model.gguf", fix="Take another.")
    settings = SchedulerSettings(watermark=0.0, **asked.get("settings", {}))
    model = FakeModel(4, settings.max_num_batched_tokens, settings.max_num_seqs)
    runner = FakeRunner(model)

    def answer(plan: StepPlan) -> StepResult:
        first = {row.tokens[0] for row in plan.rows if row.start == 0}
        if asked.get("stick_on") in first:
            time.sleep(1e6)
        if asked.get("break_on") in first:
            return StepResult(plan.step, ())
        time.sleep(asked.get("sleep", 0.0))
        runner.plans.clear()
        return model.run(plan)

    runner.answer = answer
    grammars = Grammars(asked.get("gate", ""))
    core = EngineCore(
        Scheduler(settings, KVManager(asked.get("blocks", 64), 4, True)),
        runner,
        tokenizer=Letters(),  # type: ignore[arg-type]
        vocab_size=VOCABULARY,
        max_model_len=200,
        recorder=TimelineRecorder(),
        grammars=grammars,  # type: ignore[arg-type]
    )
    if start.warm_up:
        warm_up(core)
    return core, bare_info(core)


if __name__ == "__main__":
    sys.exit(run_child(build, Path(sys.argv[1])))
