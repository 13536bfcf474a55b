"""The engine's own process: one thread steps the core and talks to the parent between the steps."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from slipstream.engine.core import EngineCore
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.process.heart import Heart, Pulse, be_killed_with_parent, end_with_parent
from slipstream.engine.process.preparing import Preparing
from slipstream.engine.process.sockets import from_child, puller, pusher, remove_folder, to_child
from slipstream.engine.process.wire import (
    Abort,
    Add,
    AskTimeline,
    Close,
    Closed,
    Failed,
    FromChild,
    Ready,
    Refused,
    Start,
    Stepped,
    Timeline,
    ToChild,
    WireDelta,
    decode_to_child,
    encode,
    wire_delta,
)
from slipstream.engine.process.wire_errors import to_wire
from slipstream.engine.protocol import EngineInfo
from slipstream.errors import RequestError, SlipstreamError

Build = Callable[[Start], tuple[EngineCore, EngineInfo]]  # the core is ready to work
STATS_INTERVAL = 0.1  # seconds between two snapshots while nothing ends
_LOOK_AGAIN = 2  # milliseconds, for requests that are being prepared
_LAST_WORDS = 5.0  # seconds that the last message may take


def run_child(build: Build, folder: Path) -> int:
    """Serve one parent until it says `Close` or dies; the exit status.

    `folder` holds the sockets: the last argument of the command. The parent holds stdin open, and its end is ours. What
    libraries print goes to stderr, which the parent keeps. Interrupts and SIGTERM are the parent's to act on: it may be
    draining.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.dup2(2, 1)
    end_with_parent(sys.stdin.fileno(), folder)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox, outbox, beats = puller(context), pusher(context, linger=_LAST_WORDS), pusher(context, linger=0)
    inbox.connect(to_child(folder))
    for socket in (outbox, beats):
        socket.connect(from_child(folder))
    start = decode_to_child(inbox.recv())
    assert isinstance(start, Start)
    for socket in (outbox, beats):
        socket.poll(flags=zmq.POLLOUT)
    remove_folder(folder)  # all are connected
    be_killed_with_parent()
    pulse = Pulse()
    heart = Heart(beats, pulse, start.heartbeat)
    try:
        core, info = build(start)
        return ChildLoop(core, info, inbox, outbox, pulse).run()
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the parent has to learn of it
        sys.excepthook(type(error), error, error.__traceback__) if not isinstance(error, SlipstreamError) else None
        outbox.send(encode(Failed(to_wire(error))))
        return 1
    finally:
        heart.stop()
        outbox.close()
        inbox.close()
        context.term()


class ChildLoop:
    """Adds, aborts and questions are carried out between steps; each step's deltas leave in one message."""

    def __init__(
        self,
        core: EngineCore,
        info: EngineInfo,
        inbox: zmq.Socket[bytes],
        outbox: zmq.Socket[bytes],
        pulse: Pulse,
    ) -> None:
        self._core = core
        self._info = info
        self._inbox = inbox
        self._outbox = outbox
        self._pulse = pulse
        self._handles: dict[str, int] = {}  # of open requests
        self._ids: dict[int, str] = {}
        self._preparing = Preparing(core.prepare)
        self._stats_sent = 0.0

    def run(self) -> int:
        """Until `Close`, whose open requests end with reason "abort"."""
        self._send(Ready(self._info, self._core.stats()))
        while self._drain():
            if not self._core.has_work:
                continue
            self._pulse.in_step = True
            deltas = self._core.step()
            self._pulse.steps += 1
            self._pulse.in_step = False
            self._deliver(deltas)
        for message in self._preparing.cancel_all():
            self._aborted(message)
        for request_id in list(self._handles):
            self._deliver(self._core.abort(request_id))
        self._send(Closed(self._core.stats()))
        return 0

    def _drain(self) -> bool:
        """Carry out what has come, waiting for something when there is nothing else to do; False after `Close`."""
        if not self._core.has_work:
            self._inbox.poll(_LOOK_AGAIN if self._preparing else None)
        while True:
            try:
                message = decode_to_child(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            if isinstance(message, Close):
                return False
            self._handle(message)
        if self._preparing:
            for prepared, error in self._preparing.done():
                if error is None:
                    self._add(prepared)
                else:
                    self._core.release_place(prepared.request.request_id)
                    self._send(Refused(prepared.handle, to_wire(error)))
        return True

    def _handle(self, message: ToChild) -> None:
        if isinstance(message, Add):
            if message.request.params.grammar is None:
                self._add(message)
            else:
                self._prepare(message)
        elif isinstance(message, Abort):
            self._abort(message.handle)
        elif isinstance(message, AskTimeline):
            self._send(Timeline(message.question, self._core.timeline(message.request_id)))

    def _prepare(self, message: Add) -> None:
        """Its place in the queue is taken at once, so that the bounds hold for what is being prepared, too."""
        try:
            self._core.hold_place(message.request)
        except RequestError as refusal:
            self._send(Refused(message.handle, to_wire(refusal)))
        else:
            self._preparing.start(message)

    def _add(self, message: Add) -> None:
        request = message.request
        try:
            self._core.add(request, arrival=message.arrival)
        except RequestError as refusal:
            self._send(Refused(message.handle, to_wire(refusal)))
        else:
            self._handles[request.request_id] = message.handle
            self._ids[message.handle] = request.request_id

    def _abort(self, handle: int) -> None:
        preparing = self._preparing.cancel(handle)
        if preparing is not None:
            self._aborted(preparing)
        elif handle in self._ids:
            self._deliver(self._core.abort(self._ids[handle]))

    def _aborted(self, message: Add) -> None:
        """It had not been added yet."""
        self._core.release_place(message.request.request_id)
        deltas = [WireDelta(message.handle, i, "", (), finish_reason="abort") for i in range(message.request.params.n)]
        self._send(Stepped(deltas, time.monotonic()))

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        wired = [wire_delta(self._handles[delta.request_id], delta) for delta in deltas]
        open_ids = self._core.open_request_ids
        for request_id in {delta.request_id for delta in deltas if delta.finish_reason is not None}:
            if request_id not in open_ids:
                del self._ids[self._handles.pop(request_id)]
        now = time.monotonic()
        ended = any(delta.finish_reason is not None for delta in deltas)
        stats = self._core.stats() if ended or now - self._stats_sent >= STATS_INTERVAL else None
        if stats is not None:
            self._stats_sent = now
        if wired or stats is not None:
            self._send(Stepped(wired, now, stats))

    def _send(self, message: FromChild) -> None:
        self._outbox.send(encode(message))
