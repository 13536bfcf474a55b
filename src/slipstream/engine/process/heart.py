"""The threads of the engine's process that are not the engine: signs of life, and an end with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import zmq

from slipstream.engine.process.sockets import remove_folder
from slipstream.engine.process.wire import Beat, encode

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Pulse:
    """Written by the engine's thread, read by the heart's."""

    steps: int = 0
    in_step: bool = False


class Heart:
    """Beats every `interval` seconds on a socket that its thread alone uses from now on, until `stop`."""

    def __init__(self, socket: zmq.Socket[bytes], pulse: Pulse, interval: float) -> None:
        self._socket = socket
        self._pulse = pulse
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the socket is closed: a context with an open one would wait for it forever."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with contextlib.suppress(zmq.Again):  # the parent has hung up
                    self._socket.send(encode(Beat(self._pulse.steps, self._pulse.in_step)), zmq.NOBLOCK)
                if self._stop.wait(self._interval):
                    return
        finally:
            self._socket.close()


def end_with_parent(lifeline: int, folder: Path) -> None:
    """Leave at once when the other end of the pipe `lifeline` is closed, which the parent's death does."""

    def watch() -> None:
        while os.read(lifeline, 4096):
            pass
        remove_folder(folder)
        os._exit(0)

    threading.Thread(target=watch, name="slipstream-lifeline", daemon=True).start()


def be_killed_with_parent() -> None:
    """Ask the kernel to kill this process with the parent's thread that started it, once nothing is left to clean up.

    That also works while a defect holds the interpreter, or while the process is stopped.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
