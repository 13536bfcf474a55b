"""The open requests of a ProcessEngine, between the event loops that made them and the supervisor's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count

from slipstream.engine.process.totals import add_totals, without_gauges
from slipstream.engine.process.wire import (
    Abort,
    AskTimeline,
    Closed,
    FromChild,
    Ready,
    Refused,
    Stepped,
    Timeline,
    WireDelta,
    encode,
    encode_add,
    output_delta,
)
from slipstream.engine.process.wire_errors import from_wire
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.streams import Item, Stream, deliver
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import EngineError, InvalidParamsError, SlipstreamError

_DELIVERIES = 512  # finished requests whose delivery is remembered for their timelines

Send = Callable[[bytes], bool]  # False: there is no process to send to


@dataclass(slots=True, eq=False)
class _Entry:
    request_id: str
    stream: Stream
    open_completions: int  # as the other process sees it; the stream's own count runs behind


class OpenRequests:
    """Requests are told apart by handles that are never used again, so that what comes late for one that was left
    cannot reach a new one of the same id. Every method may be called from any thread; `on_` ones by the supervisor."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._numbers = count(1)
        self._entries: dict[int, _Entry] = {}  # by handle
        self._handles: dict[str, int] = {}  # by request id
        self._questions: dict[int, Future[RequestTimeline | None]] = {}
        self._deliveries: OrderedDict[str, Stream] = OrderedDict()
        self._before = EngineStats()  # totals of earlier processes
        self._restarts = -1
        self.ready = False
        self.stats = EngineStats()
        self.info: EngineInfo | None = None
        self.failure: SlipstreamError | None = None  # no process will come any more
        self.started: Future[None] = Future()  # fails with what kept the first process from starting

    def enter(self, request: GenerationRequest, send: Send) -> tuple[int, Stream] | None:
        """Its handle and stream; None if there is no process. Raises InvalidParamsError."""
        stream = Stream(asyncio.get_running_loop(), request.params.n)
        handle = next(self._numbers)
        data = encode_add(handle, request, time.monotonic())
        with self._door:
            if not self.ready:
                return None
            if request.request_id in self._handles:
                raise InvalidParamsError("a request with this id is running.", where=f"request {request.request_id}")
            if not send(data):
                return None
            self._handles[request.request_id] = handle
            self._entries[handle] = _Entry(request.request_id, stream, request.params.n)
        return handle, stream

    def leave(self, handle: int, send: Send) -> None:
        """The caller wants no more of it."""
        with self._door:
            if self._forget(handle) is not None:
                send(encode(Abort(handle)))

    def abort(self, request_id: str, send: Send) -> None:
        with self._door:
            handle = self._handles.get(request_id)
            if handle is not None:
                send(encode(Abort(handle)))

    def ask(self, request_id: str, send: Send) -> Future[RequestTimeline | None]:
        answer: Future[RequestTimeline | None] = Future()
        question = next(self._numbers)
        with self._door:
            if send(encode(AskTimeline(question, request_id))):
                self._questions[question] = answer
            else:
                answer.set_result(None)
        return answer

    # ---- called by the supervisor's thread ----

    def on_ready(self, message: Ready) -> None:
        with self._door:
            self._restarts += 1
            self.info = message.info
            self._take_stats(message.stats)
            self.ready = True
        if not self.started.done():
            self.started.set_result(None)

    def on_message(self, message: FromChild, send: Send) -> None:
        if isinstance(message, Stepped):
            self._stepped(message, send)
        elif isinstance(message, Refused):
            with self._door:
                entry = self._forget(message.handle)
            if entry is not None:
                deliver([(entry.stream, from_wire(message.error))])
        elif isinstance(message, Timeline):
            self._answer(message)
        elif isinstance(message, Closed):
            with self._door:
                self._take_stats(message.stats)

    def on_lost(self, error: SlipstreamError, *, final: bool) -> None:
        with self._door:
            self.ready = False
            self._before = self.stats = without_gauges(self.stats)
            if final:
                self.failure = error
            entries, self._entries, self._handles = list(self._entries.values()), {}, {}
            questions, self._questions = list(self._questions.values()), {}
        fix = "Make a new engine." if final else "The engine is being restarted; send the request again."
        deliver([(entry.stream, _ended(entry.request_id, error, fix)) for entry in entries])
        for answer in questions:
            answer.set_result(None)
        if not self.started.done():
            self.started.set_exception(error)

    def _stepped(self, message: Stepped, send: Send) -> None:
        items: list[tuple[Stream, Item]] = []
        with self._door:
            if message.stats is not None:
                self._take_stats(message.stats)  # before a caller can see the end of its stream
            for delta in message.deltas:
                entry = self._entries.get(delta.handle)
                if entry is not None:
                    items.append((entry.stream, (message.made, output_delta(entry.request_id, delta))))
                    self._count(entry, delta)
        for stream in deliver(items):
            self._deserted(stream, send)

    def _count(self, entry: _Entry, delta: WireDelta) -> None:
        if delta.finish_reason is None:
            return
        entry.open_completions -= 1
        if entry.open_completions == 0:
            self._forget(delta.handle)
            self._deliveries.pop(entry.request_id, None)
            self._deliveries[entry.request_id] = entry.stream
            if len(self._deliveries) > _DELIVERIES:
                self._deliveries.popitem(last=False)

    def _answer(self, message: Timeline) -> None:
        with self._door:
            answer = self._questions.pop(message.question, None)
            stream = None if message.timeline is None else self._deliveries.get(message.timeline.request_id)
        if answer is not None and not answer.cancelled():
            timeline = message.timeline
            if timeline is not None and stream is not None:
                timeline = replace(timeline, delivery=stream.delivery())
            answer.set_result(timeline)

    def _deserted(self, stream: Stream, send: Send) -> None:
        """Its event loop is closed."""
        with self._door:
            handles = [handle for handle, entry in self._entries.items() if entry.stream is stream]
        for handle in handles:
            self.leave(handle, send)

    def _forget(self, handle: int) -> _Entry | None:
        entry = self._entries.pop(handle, None)
        if entry is not None:
            del self._handles[entry.request_id]
        return entry

    def _take_stats(self, stats: EngineStats) -> None:
        self.stats = replace(add_totals(self._before, stats), num_restarts=self._restarts)


def _ended(request_id: str, error: SlipstreamError, fix: str) -> EngineError:
    where = f"request {request_id}"
    made = EngineError(f"the engine has stopped: {error}", where=where, fix=fix)
    made.__cause__ = error
    return made
