"""A thread that starts the engine's process, reads what it says, sees it crash or hang, and starts it again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from slipstream.engine.process.child_process import ChildProcess
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.process.wire import (
    Beat,
    Close,
    Closed,
    Failed,
    FromChild,
    Ready,
    ToChild,
    decode_from_child,
    encode,
)
from slipstream.engine.process.wire_errors import from_wire
from slipstream.errors import EngineError, SlipstreamError

log = logging.getLogger("slipstream.engine")
_TICK = 0.25  # seconds between two looks at the clock
_GRACE = 1.0  # seconds that a process which closed its stderr may take to be gone


class Listener(Protocol):
    """Called by the supervisor's thread."""

    def on_ready(self, message: Ready) -> None: ...

    def on_message(self, message: FromChild, send: Callable[[bytes], bool]) -> None: ...

    def on_lost(self, error: SlipstreamError, *, final: bool) -> None:
        """The process is gone. `final`: there will be no other."""
        ...


@dataclass(slots=True)
class _Watch:
    """What is known of the process that runs now."""

    started: float
    heard: float  # when it last gave a sign of life
    ready: float | None = None
    steps: int = 0
    step_since: float | None = None
    failure: SlipstreamError | None = None  # what it said itself
    closed: bool = False


class Supervisor:
    """`send` from any thread; everything else happens in the thread, whose end means that no process is left."""

    def __init__(self, command: Sequence[str], start: ToChild, settings: ProcessSettings, listener: Listener) -> None:
        self._command = tuple(command)
        self._start = encode(start)
        self._settings = settings
        self._listener = listener
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._child: ChildProcess | None = None  # to which can be sent
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._load_time = 1.0  # seconds; a guess until it has been seen
        self.kept_stderr = ""
        self.ready_at = 0.0  # an estimate, on the monotonic clock, while no process is ready
        self._thread = threading.Thread(target=self._run, name="slipstream-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, data: bytes) -> bool:
        """False if no process is ready."""
        with self._sending:
            if self._child is None:
                return False
            self._child.outbox.send(data, zmq.NOBLOCK)
            return True

    def close(self) -> None:
        """Ask the process to end, kill it if it takes too long; returns when it is gone. May be called twice."""
        self._closing.set()
        self.send(encode(Close()))
        self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        try:
            self._run_processes()
        except BaseException as error:
            log.exception("the supervisor of the engine's process has failed")
            self._listener.on_lost(EngineError(f"its supervisor failed: {type(error).__name__}: {error}"), final=True)
        self._context.term()

    def _run_processes(self) -> None:
        failures = 0
        been_ready = False
        while not self._closing.is_set():
            watch, error = self._one_process()
            been_ready |= watch.ready is not None
            now = time.monotonic()
            stable = watch.ready is not None and now - watch.ready >= self._settings.stable_after
            failures = 1 if stable else failures + 1
            closing = self._closing.is_set()
            final = closing or not been_ready or not self._settings.restart
            delay = self._settings.delay(failures)
            self.ready_at = now + delay + self._load_time
            self._listener.on_lost(error, final=final)
            if final:
                break
            log.error("%s It is started again in %.1f s.", error, delay)
            self._closing.wait(delay)
        else:
            self._listener.on_lost(EngineError("the engine is closed."), final=True)

    def _one_process(self) -> tuple[_Watch, SlipstreamError]:
        """From its start to its end, and why it ended."""
        now = time.monotonic()
        watch = _Watch(now, now)
        self.ready_at = now + self._load_time
        try:
            child = ChildProcess(self._context, self._command)
        except OSError as error:
            return watch, EngineError(f"the engine's process cannot be started: {error}.", where=self._command[0])
        why = None
        try:
            why = self._watch(child, watch)
        finally:
            with self._sending:
                self._child = None
            if why is not None:
                child.kill()
            how = child.end(_GRACE)
            self.kept_stderr = child.kept_stderr()
        if watch.closed:
            return watch, EngineError("the engine is closed.")
        if watch.failure is not None:
            return watch, watch.failure
        return watch, EngineError(f"the engine's process {why or how}.", where=f"process {child.pid}")

    def _watch(self, child: ChildProcess, watch: _Watch) -> str | None:
        """Until the process ends (None), or has to be killed: why."""
        poller = zmq.Poller()
        poller.register(child.inbox, zmq.POLLIN)
        poller.register(child.stderr, zmq.POLLIN)
        poller.register(child.outbox, zmq.POLLOUT)  # until the process is connected
        close_by: float | None = None
        last = time.monotonic()
        while True:
            events = dict(poller.poll(int(_TICK * 1000)))
            if child.outbox in events:
                child.outbox.send(self._start, zmq.NOBLOCK)
                poller.unregister(child.outbox)
            ended = (child.stderr in events and not child.read_stderr()) or not child.alive
            for data in child.messages():
                self._receive(child, watch, decode_from_child(data))
            if ended or watch.closed or watch.failure is not None:
                return None
            now = time.monotonic()
            if self._closing.is_set():
                close_by = close_by or now + (0.0 if watch.ready is None else self._settings.close_timeout)
                if now >= close_by:
                    return "was killed because its last step took too long"
            if now - last > 4 * _TICK:  # this process itself stood still, and may not have heard what was said
                watch.heard = now
            last = now
            hang = self._hang(watch, now)
            if hang is not None:
                return hang

    def _receive(self, child: ChildProcess, watch: _Watch, message: FromChild) -> None:
        now = watch.heard = time.monotonic()
        if isinstance(message, Beat):
            if message.steps != watch.steps or not message.in_step:
                watch.step_since = None
            watch.steps = message.steps
            if message.in_step and watch.step_since is None:
                watch.step_since = now
        elif isinstance(message, Ready):
            watch.ready = now
            self._load_time = now - watch.started
            with self._sending:
                self._child = child
            self._listener.on_ready(message)
        elif isinstance(message, Failed):
            watch.failure = from_wire(message.error)
        else:
            self._listener.on_message(message, self.send)
            watch.closed |= isinstance(message, Closed)

    def _hang(self, watch: _Watch, now: float) -> str | None:
        settings = self._settings
        if watch.ready is None:
            if now - watch.heard > settings.start_timeout:
                return f"gave no sign of life for {settings.start_timeout:g} s while it started"
        elif now - watch.heard > settings.heartbeat_timeout:
            return f"hangs: no sign of life for {settings.heartbeat_timeout:g} s"
        elif (
            settings.step_timeout is not None
            and watch.step_since is not None
            and now - watch.step_since > settings.step_timeout
        ):
            return f"hangs: one step has taken more than {settings.step_timeout:g} s"
        return None
