"""A progress bar over requests, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def request_progress(total: int | None, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yields advance(requests finished, tokens generated). `total` None: not known. Shows output tokens/s."""
    bar = Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
    )
    started, tokens = time.monotonic(), 0
    with bar:
        task = bar.add_task("requests", total=total, rate="")

        def advance(finished: int, num_tokens: int) -> None:
            nonlocal tokens
            tokens += num_tokens
            rate = tokens / max(time.monotonic() - started, 1e-9)
            bar.update(task, advance=finished, rate=f"{tokens} tokens, {rate:.1f}/s")

        yield advance
