"""Transfer progress on stderr: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.hub.disk import format_bytes
from slipstream.hub.progress import NoProgress, Progress


class LineProgress:
    """A line when a stage begins; no control characters, so logs stay readable."""

    def begin(self, label: str, num_bytes: int) -> None:
        print(f"{label} ({format_bytes(num_bytes)})", file=sys.stderr)

    def reach(self, num_bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


@contextmanager
def transfer_progress(quiet: bool) -> Iterator[Progress]:
    """Progress for the block: silent, lines, or a bar that is gone or complete when the block ends."""
    if quiet:
        yield NoProgress()
    elif not sys.stderr.isatty():
        yield LineProgress()
    else:
        from slipstream.cli.pull_bar import BarProgress

        with BarProgress() as bar:
            yield bar
