"""Requests whose grammar has to be compiled first, which takes too long to do between two steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from slipstream.engine.process.wire import Add
from slipstream.sampling.params import SamplingParams

_THREADS = 8


class Preparing:
    """`prepare` runs in at most `threads` threads of its own, so that few wait for another's grammar. Everything else
    is for one thread."""

    def __init__(self, prepare: Callable[[SamplingParams], None], *, threads: int = _THREADS) -> None:
        self._threads = threads
        self._prepare = prepare
        self._thread: ThreadPoolExecutor | None = None
        self._open: dict[int, Add] = {}
        self._done: SimpleQueue[tuple[int, Exception | None]] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._open)

    def start(self, message: Add) -> None:
        self._open[message.handle] = message
        if self._thread is None:
            self._thread = ThreadPoolExecutor(self._threads, thread_name_prefix="slipstream-prepare")
        self._thread.submit(self._run, message)

    def cancel(self, handle: int) -> Add | None:
        """None if it is not being prepared."""
        return self._open.pop(handle, None)

    def cancel_all(self) -> list[Add]:
        messages = list(self._open.values())
        self._open.clear()
        return messages

    def done(self) -> list[tuple[Add, Exception | None]]:
        """Those that are ready, or what is wrong with them."""
        results: list[tuple[Add, Exception | None]] = []
        while True:
            try:
                handle, error = self._done.get_nowait()
            except Empty:
                return results
            message = self._open.pop(handle, None)
            if message is not None:
                results.append((message, error))

    def _run(self, message: Add) -> None:
        try:
            if message.handle in self._open:
                self._prepare(message.request.params)
            self._done.put((message.handle, None))
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's and not the engine's
            self._done.put((message.handle, error))
