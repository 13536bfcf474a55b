"""Work on texts beside the event loop: short texts at once, long ones in a thread, the longest one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

INLINE = 2000  # characters that are tokenised in well under a millisecond
LONG = 100_000  # that take a tenth of a second and more

Result = TypeVar("Result")


class TextThreads:
    """Runs work whose time goes with the length of a text. Two texts of more than `LONG` characters are never worked
    on at once: however many there are, the threads that everybody shares stay free for the others."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """`size`: characters or tokens."""
        if size <= INLINE:
            return work()
        if size <= LONG:
            return await asyncio.to_thread(work)
        async with self._turn:
            return await asyncio.to_thread(work)
