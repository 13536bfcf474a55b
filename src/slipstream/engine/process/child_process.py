"""The parent's side of one engine process: its sockets, its pipes, what it says on stderr, and how it ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

import zmq

from slipstream.engine.process.sockets import from_child, make_folder, puller, pusher, remove_folder, to_child

STDERR_KEPT = 1 << 16  # bytes
_TOLD = 3  # last lines of stderr that an error quotes

log = logging.getLogger("slipstream.engine")


class ChildProcess:
    """Used by the supervisor's thread; `outbox` also, under the supervisor's lock, by those who send."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], command: Sequence[str]) -> None:
        self._folder = make_folder()
        self.inbox, self.outbox = puller(context), pusher(context, linger=0)
        try:
            self.inbox.bind(from_child(self._folder))
            self.outbox.bind(to_child(self._folder))
            self._process = subprocess.Popen(
                (*command, str(self._folder)),
                stdin=subprocess.PIPE,  # never written to: its end tells the process of ours
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # what is sent to this process's group is for this process to act on
            )
        except BaseException:
            self._close_sockets()
            raise
        assert self._process.stderr is not None
        self.stderr = self._process.stderr.fileno()
        os.set_blocking(self.stderr, False)
        self._kept = bytearray()
        self._line = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def read_stderr(self) -> bool:
        """Keep what has come and log it by lines. False once nothing more can come, so that the process has ended."""
        while True:
            try:
                data = os.read(self.stderr, STDERR_KEPT)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._kept += data
            del self._kept[:-STDERR_KEPT]
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                log.warning("engine process %d: %s", self.pid, line.decode(errors="replace"))

    def kept_stderr(self) -> str:
        return self._kept.decode(errors="replace")

    def messages(self) -> Iterator[bytes]:
        """What has come, without waiting."""
        while True:
            try:
                yield self.inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return

    def kill(self) -> None:
        self._process.kill()

    def end(self, timeout: float) -> str:
        """Wait so many seconds, then kill; free everything; say how the process ended."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.read_stderr()
        self._process.stderr.close()
        self._close_sockets()
        return self._how(status)

    def _close_sockets(self) -> None:
        self.inbox.close()
        self.outbox.close()
        remove_folder(self._folder)

    def _how(self, status: int) -> str:
        if status >= 0:
            how = f"ended with status {status}"
        else:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = f"signal {-status}"
            perhaps = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
            how = f"was killed by {name}{perhaps}"
        last = [line.strip() for line in self.kept_stderr().splitlines() if line.strip()][-_TOLD:]
        return f"{how} (it said: {' | '.join(last)})" if last else how
