"""The two one-way sockets between the processes, in a private folder that is gone once both sides have met."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import zmq

from slipstream.errors import EngineError

_MAX_PATH = 100  # bytes of a Unix socket's path; the system takes 107


def make_folder() -> Path:
    """Readable by this user only."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
    if len(bytes(folder / "from")) > _MAX_PATH:
        folder.rmdir()
        raise EngineError(
            "the path is too long for the socket of the engine's process.",
            where=str(folder),
            fix="Point TMPDIR to a folder with a shorter path.",
        )
    return folder


def remove_folder(folder: Path) -> None:
    """May be called again, and by both sides."""
    for name in ("to", "from"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def to_child(folder: Path) -> str:
    return f"ipc://{folder}/to"


def from_child(folder: Path) -> str:
    return f"ipc://{folder}/from"


def pusher(context: zmq.Context[zmq.Socket[bytes]], *, linger: float) -> zmq.Socket[bytes]:
    """`linger`: seconds that what was sent last may take to leave after the socket is closed."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, int(linger * 1000))
    socket.setsockopt(zmq.IMMEDIATE, 1)  # can be written to only when it is connected
    socket.setsockopt(zmq.SNDHWM, 0)  # requests that wait for a long step to end must not block an event loop
    return socket


def puller(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
