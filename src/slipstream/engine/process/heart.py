"""The threads of the engine's process that are not the engine: signs of life, and an end with the parent."""

from __future__ import annotations

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


def start_heart(socket: zmq.Socket[bytes], pulse: Pulse, interval: float) -> threading.Event:
    """Beat every `interval` seconds on a socket that this thread alone uses from now on. Setting the event ends it."""
    stop = threading.Event()

    def beat() -> None:
        socket.send(encode(Beat(pulse.steps, pulse.in_step)))
        while not stop.wait(interval):
            socket.send(encode(Beat(pulse.steps, pulse.in_step)))
        socket.close()

    threading.Thread(target=beat, name="slipstream-heart", daemon=True).start()
    return stop


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
