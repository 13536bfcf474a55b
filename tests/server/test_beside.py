"""Long texts take turns; short ones never wait for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipstream.server.beside import INLINE, LONG, TextThreads

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


async def test_short_texts_are_worked_on_at_once() -> None:
    assert await TextThreads().run(INLINE, threading.current_thread) is threading.current_thread()
    assert await TextThreads().run(INLINE + 1, threading.current_thread) is not threading.current_thread()


async def test_one_long_text_at_a_time_and_others_beside_it() -> None:
    threads, release, running, most = TextThreads(), threading.Event(), [0], [0]

    def long_work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        assert release.wait(10)
        running[0] -= 1

    tasks = [asyncio.create_task(threads.run(LONG + 1, long_work)) for _ in range(40)]  # more than there are threads
    assert await asyncio.wait_for(threads.run(LONG, lambda: "done"), 10) == "done"
    release.set()
    await asyncio.gather(*tasks)
    assert most == [1]


async def test_who_leaves_while_waiting_is_not_worked_for() -> None:
    threads, release, done = TextThreads(), threading.Event(), []
    first = asyncio.create_task(threads.run(LONG + 1, lambda: release.wait(10)))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.run(LONG + 1, lambda: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    release.set()
    assert await first
    await threads.run(LONG + 1, lambda: done.append("third"))
    assert done == ["third"]
