"""One bar per stage, on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Stage:
    """A bar that counts tokens; the rate leaves out what an earlier run had done."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._started = time.monotonic()
        self._tokens = 0

    def advance(self, tokens: int, text: str = "") -> None:
        self._tokens += tokens
        rate = self._tokens / max(time.monotonic() - self._started, 1e-9)
        self._bars.update(self._task, advance=tokens, rate=f"{rate:,.0f} tokens/s", text=text)

    def restart(self, total: int, done: int) -> None:
        """Another total, known only now."""
        self._started, self._tokens = time.monotonic(), 0
        self._bars.reset(self._task, total=total, completed=done)


@contextmanager
def stage(
    title: str, total: int | None, *, done: int = 0, quiet: bool = False, console: Console | None = None
) -> Iterator[Stage]:
    """A bar of `total` tokens, of which `done` were there before. None: nobody knows how many there will be."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}" + ("" if total is None else "/{task.total:,.0f}"), markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        disable=quiet,
    )
    with bars:
        yield Stage(bars, bars.add_task(title, total=total, completed=done, rate="", text=""))
