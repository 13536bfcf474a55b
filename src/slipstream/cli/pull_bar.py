"""The progress bar of a transfer on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn
from rich.table import Column


class BarProgress:
    """One bar per stage, on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Progress(
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            BarColumn(bar_width=16, table_column=Column(no_wrap=True)),
            DownloadColumn(table_column=Column(no_wrap=True)),
            SpeedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            expand=True,
            console=console or Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._total = 0

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def begin(self, label: str, num_bytes: int) -> None:
        self._finish()
        self._total = num_bytes
        self._task = self._bars.add_task(label, total=num_bytes)

    def reach(self, num_bytes: int) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=min(num_bytes, self._total))

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def _finish(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=self._total)
