"""Processes that try whether a grammar can be read within bounds of time and memory; see `reader`."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from weakref import finalize

from slipstream.errors import EngineError

COMMAND = (sys.executable, "-P", "-m", "slipstream.sampling.grammar.reader")
MAX_READ_SECONDS = 1.0  # of the process's processor time, per grammar
# Seconds by the clock. Who takes long has to stand back for the engine's threads.
_QUICK, _NICENESS = 0.2, 5
_MAX_WAIT = 20.0


class GrammarReaders:
    """Starts processes as grammars come, one per grammar being read, and keeps one for the next. Threads may share it.

    special: the special tokens of the model's vocabulary, whose names grammars may use.
    """

    def __init__(self, vocab_size: int, special: Mapping[int, bytes], *, seconds: float = MAX_READ_SECONDS) -> None:
        names = {str(token_id): name.decode("latin-1") for token_id, name in special.items()}
        self._vocabulary = json.dumps({"size": vocab_size, "special": names}).encode() + b"\n"
        self._seconds = seconds
        self._lock = Lock()
        self._idle: list[_Reader] = []

    def start(self) -> None:
        """Have a process ready, or on its way. Raises EngineError."""
        self._give_back(self._take())

    def read(self, source: str) -> str:
        """What is wrong with a grammar, in llguidance's words; "" for nothing. Raises GrammarTooCostly, or EngineError
        where no process is to be had."""
        answer = None
        while answer is None:
            reader = self._take()
            answer = reader.read(source, self._seconds)
        if not reader.slow:
            self._give_back(reader)
        return answer

    def _take(self) -> _Reader:
        with self._lock:
            reader = self._idle.pop() if self._idle else None
        return reader if reader is not None and reader.alive else _Reader(self._vocabulary)

    def _give_back(self, reader: _Reader) -> None:
        with self._lock:
            if not self._idle:
                self._idle.append(reader)


class GrammarTooCostly(Exception):  # noqa: N818  a finding, which the compiler turns into a refusal
    """Its text says what ran out."""


class _Reader:
    """One process, up to a grammar that is too costly for it. It ends with this object, too."""

    def __init__(self, vocabulary: bytes) -> None:
        try:
            process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        except OSError as error:
            raise EngineError(f"the process that reads grammars cannot be started: {error}.") from error
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._end = finalize(self, _end, process)
        self._ready = False
        self.slow = False  # it stands back now, and cannot be brought forward again
        self._send(vocabulary)

    @property
    def alive(self) -> bool:
        """It ends by itself after some time without work, which shows in a line that it says."""
        return self._process.poll() is None and not (self._ready and self._said(0.0))

    def read(self, source: str, seconds: float) -> str | None:
        """None if it had ended for want of work."""
        if not self._ready and not self._line():
            self._end()
            raise EngineError(f"the process that reads grammars has ended: status {self._process.returncode}.")
        self._ready = True
        self._send(json.dumps({"source": source, "seconds": seconds}).encode() + b"\n")
        if not self._said(_QUICK):
            self.slow = True
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
        answer = self._line()
        if answer:
            return str(json.loads(answer))
        self._end()
        if self._process.returncode == 0:
            return None
        if self._process.returncode == -signal.SIGPROF:
            raise GrammarTooCostly(f"it takes more than {seconds:g} s of processor time to read")
        raise GrammarTooCostly("it takes too much memory or time to read")

    def _send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # the end of its answers tells
            self._in.write(line)
            self._in.flush()

    def _line(self) -> bytes:
        return self._out.readline() if self._said(_MAX_WAIT) else b""

    def _said(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        return bool(poll.poll(1000 * seconds))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
