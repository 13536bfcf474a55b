"""An engine for asyncio: the core runs in a thread of its own, streams cross over in one call per step."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.config.types import EngineOptions
from slipstream.engine.core import EngineCore
from slipstream.engine.info import bare_info, engine_info
from slipstream.engine.loading import engine_options, load_engine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.streams import Item, Stream, deliver
from slipstream.engine.timeline import RequestTimeline
from slipstream.engine.warm_up import warm_up
from slipstream.errors import EngineError, RequestError
from slipstream.text.tokenizer import Tokenizer

_DELIVERIES = 512  # finished requests whose delivery is remembered for their timelines


@dataclass(frozen=True, slots=True)
class _Add:
    request: GenerationRequest
    stream: Stream
    arrival: float  # on the core's clock


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    stream: Stream | None  # only if the request is still this stream's; None: whoever has it


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class AsyncEngine:
    """Implements `protocol.Engine` over an `EngineCore`, which it owns from now on.

    Guarantees: a request is checked before anything of it is queued; leaving its stream aborts it within one
    step, and so does closing its event loop; if the core itself breaks, every open stream raises EngineError and so
    does every later `generate`; `close` ends open streams with reason "abort", may be called twice and waits for the
    step under way.
    """

    def __init__(self, core: EngineCore, info: EngineInfo | None = None) -> None:
        self._core = core
        self._info = info or bare_info(core)
        self._inbox: queue.SimpleQueue[_Add | _Abort | _Close] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}  # touched by the engine thread only
        self._delivered: OrderedDict[str, Stream] = OrderedDict()  # of the last finished requests
        self._stats = core.stats()
        self._failure: BaseException | None = None
        self._closed = False
        self._door = threading.Lock()  # nothing enters the inbox after the engine thread has emptied it for good
        self._thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)
        self._thread.start()
        atexit.register(self._stop)  # a thread inside a native kernel must not outlive the interpreter

    @classmethod
    def load(
        cls, model: str | EngineOptions, *, cache_dir: Path | None = None, warmed_up: bool = True, **settings: Any
    ) -> AsyncEngine:
        """Load a model, named and set as for `LLM`; blocks until it is ready. Raises as `load_engine` does."""
        started = time.monotonic()
        loaded = load_engine(engine_options(model, settings), cache_dir=cache_dir, timelines=True)
        load_time = time.monotonic() - started
        warm_up_time = warm_up(loaded.core) if warmed_up else 0.0
        return cls(loaded.core, engine_info(loaded, load_time=load_time, warm_up_time=warm_up_time))

    @property
    def ready(self) -> bool:
        return not self._closed and self._failure is None and self._thread.is_alive()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Safe to use from any thread."""
        return self._core.tokenizer

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        """Raises RequestError before any work, EngineError when the engine is closed or has failed."""
        self._require_alive(request.request_id)
        stream = Stream(asyncio.get_running_loop(), request.params.n)
        if request.params.grammar is None:
            self._enter(request, stream)
        else:
            await self._prepare(request, stream)
        try:
            async with aclosing(stream.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            if stream.open_completions:
                self._inbox.put(_Abort(request.request_id, stream))

    async def _prepare(self, request: GenerationRequest, stream: Stream) -> None:
        self._core.hold_place(request)
        try:
            await asyncio.to_thread(self._core.prepare, request.params)
            self._enter(request, stream)
        except BaseException:
            self._core.release_place(request.request_id)
            raise

    def _enter(self, request: GenerationRequest, stream: Stream) -> None:
        self._core.check(request)
        with self._door:
            self._require_alive(request.request_id)
            self._inbox.put(_Add(request, stream, self._core.now()))

    async def abort(self, request_id: str) -> None:
        """Its stream ends with reason "abort"; nothing happens if there is no such request."""
        self._inbox.put(_Abort(request_id, None))

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        timeline, stream = self._core.timeline(request_id), self._delivered.get(request_id)
        return timeline if timeline is None or stream is None else replace(timeline, delivery=stream.delivery())

    async def close(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._closed = True
        self._inbox.put(_Close())
        self._thread.join()
        atexit.unregister(self._stop)

    def _require_alive(self, request_id: str) -> None:
        if self._closed or self._failure is not None:
            raise self._end(request_id)
        if not self._thread.is_alive():
            raise EngineError(
                "the engine works in another process, which this one was forked from.",
                where=f"request {request_id}",
                fix="Make the engine after the fork.",
            )

    # ---- the engine thread ----

    def _run(self) -> None:
        try:
            while self._drain_inbox():
                if self._core.has_work:
                    deltas = self._core.step()
                    self._stats = self._core.stats()  # before a caller can see the end of its stream
                    self._deliver(deltas)
                self._stats = self._core.stats()
            self._end_all(lambda request_id: self._deliver(self._core.abort(request_id)))
        except BaseException as error:  # noqa: BLE001  a defect of the core itself: every caller must learn of it
            self._failure = error
            self._end_all(self._fail)
        self._stats = self._core.stats()
        self._refuse_rest()

    def _drain_inbox(self) -> bool:
        """Carry out what is waiting, blocking when there is nothing else to do; False after `_Close`."""
        block = not self._core.has_work
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return True
            block = False
            if isinstance(message, _Close):
                return False
            if isinstance(message, _Add):
                self._add(message)
            else:
                self._abort(message)

    def _add(self, message: _Add) -> None:
        try:
            self._core.add(message.request, arrival=message.arrival)
        except RequestError as error:
            deliver([(message.stream, error)])
        else:
            self._streams[message.request.request_id] = message.stream

    def _abort(self, message: _Abort) -> None:
        stream = self._streams.get(message.request_id)
        if stream is not None and (message.stream is None or message.stream is stream):
            self._deliver(self._core.abort(message.request_id))

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        made, open_ids = time.monotonic(), self._core.open_request_ids
        items: list[tuple[Stream, Item]] = []
        of_request: dict[str, Stream] = {}
        for delta in deltas:
            request_id = delta.request_id
            if request_id not in of_request:
                is_open = request_id in open_ids
                of_request[request_id] = self._streams[request_id] if is_open else self._finish(request_id)
            items.append((of_request[request_id], (made, delta)))
        deserted = deliver(items)
        if deserted:
            for request_id, stream in of_request.items():
                if stream in deserted and request_id in self._streams:
                    self._deliver(self._core.abort(request_id))

    def _finish(self, request_id: str) -> Stream:
        stream = self._streams.pop(request_id)
        self._delivered.pop(request_id, None)
        self._delivered[request_id] = stream
        if len(self._delivered) > _DELIVERIES:
            self._delivered.popitem(last=False)
        return stream

    def _end_all(self, end: Callable[[str], None]) -> None:
        for request_id in list(self._streams):
            end(request_id)
        self._streams.clear()

    def _fail(self, request_id: str) -> None:
        deliver([(self._streams[request_id], self._end(request_id))])

    def _end(self, request_id: str) -> EngineError:
        """Why nothing more comes for the request."""
        if self._failure is None:
            return EngineError("the engine is closed.", where=f"request {request_id}")
        why = f"the engine has stopped: {type(self._failure).__name__}: {self._failure}"
        error = EngineError(why, where=f"request {request_id}", fix="Make a new engine.")
        error.__cause__ = self._failure
        return error

    def _refuse_rest(self) -> None:
        """Requests that were put into the inbox before their callers could see that the engine had ended."""
        with self._door, contextlib.suppress(queue.Empty):
            self._closed = True
            while True:
                message = self._inbox.get(block=False)
                if isinstance(message, _Add):
                    deliver([(message.stream, self._end(message.request.request_id))])
