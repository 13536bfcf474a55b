"""What the benchmark and its workers say to each other: one JSON object per line on standard input and output.

A worker imports nothing of Slipstream but this file, so that it runs in the environment of another engine.

    -> {"load": {"model": PATH, "threads": N, "max_tokens": M, "max_seqs": S}}   <- {"ready": NAME, "version": TEXT}
    -> {"prefill": {"prompts": [[ids]]}}                   <- {"seconds": T, "tokens": N}
    -> {"decode": {"prompts": [[ids], ...], "steps": K}}   <- {"seconds": T, "tokens": N}
    -> {"logits": {"prompt": [ids], "out": PATH.npy}}      <- {"seconds": T, "tokens": N}

`prefill` times the prompts' forward passes up to the first token of each. `decode` times K greedy steps of the whole
batch after an untimed prefill; end-of-sequence is ignored. `tokens` counts what was really computed in the timed part.
`logits`, which only benchmarks/quality.py asks for and only llama.cpp's worker answers, saves float32 [tokens, vocab].
A workload that an engine cannot run is answered with {"unsupported": REASON}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol


class UnsupportedError(Exception):
    """Raised by an engine for a workload that it cannot run; the message says why."""


class Engine(Protocol):
    name: str
    version: str

    def load(self, model: str, threads: int, max_tokens: int, max_seqs: int) -> None: ...

    def prefill(self, prompts: list[list[int]]) -> tuple[float, int]: ...

    def decode(self, prompts: list[list[int]], steps: int) -> tuple[float, int]: ...


def serve(engine: Engine) -> None:
    """Answer commands until the input ends. What the engine itself prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        [(command, arguments)] = json.loads(line).items()
        result: dict[str, Any]
        if command == "load":
            engine.load(**arguments)
            result = {"ready": engine.name, "version": engine.version}
        else:
            try:
                seconds, tokens = getattr(engine, command)(**arguments)
                result = {"seconds": seconds, "tokens": tokens}
            except UnsupportedError as error:
                result = {"unsupported": str(error)}
        answers.write(json.dumps(result) + "\n")
        answers.flush()
