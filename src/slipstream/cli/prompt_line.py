"""How far a long prompt is, on a line that is rewritten in place and gone before the answer begins."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import TracebackType

from slipstream.config.types import EngineOptions

CHUNK = 512  # tokens per step; beside their arithmetic, reading the weights once more costs little


class PromptLine:
    """On stderr, if that is a terminal and not `quiet`; otherwise nothing is shown."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()
        self._width = 0  # of what stands there

    def show(self, done: int, total: int) -> None:
        if self._shows:
            self._write(f"prompt: {done} of {total} tokens")

    def clear(self) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def __enter__(self) -> PromptLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text:<{self._width}}")
        sys.stderr.flush()
        self._width = len(text)


def in_small_steps(options: EngineOptions) -> EngineOptions:
    """So that there is progress to show: prompts in chunks of `CHUNK` tokens, whose results are the same, unless the
    settings already say how they are cut."""
    scheduler = options.scheduler
    if (
        scheduler.max_prefill_chunk is not None
        or scheduler.max_num_batched_tokens is not None
        or not scheduler.enable_chunked_prefill
    ):
        return options
    return replace(options, scheduler=replace(scheduler, max_prefill_chunk=CHUNK))
