"""The engine in a process of its own, seen from the server's."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from slipstream.config.types import EngineOptions
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.process.requests import OpenRequests
from slipstream.engine.process.settings import ProcessSettings
from slipstream.engine.process.supervisor import Supervisor
from slipstream.engine.process.wire import Start
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import ConfigError, EngineError, EngineUnavailableError, SlipstreamError
from slipstream.text.tokenizer import Tokenizer

COMMAND = (sys.executable, "-P", "-m", "slipstream.engine.process.main")


class ProcessEngine:
    """Implements `protocol.Engine`; the model is loaded and run by a process that this one starts and watches.

    Guarantees. Construction returns when the process is ready (model loaded, warmed up) or raises what kept it from
    starting: the same errors as `load_engine`. A crash or a hang ends every open request with EngineError at once,
    `ready` becomes False, and the process is started again with growing delays, its weights mapped from the packed
    cache; requests that come meanwhile raise EngineUnavailableError. With `restart=False` they raise
    EngineError for good. The process ends with this one, however this one ends, and leaves no files behind.
    `close` ends open streams with reason "abort", may be called twice and waits for the step under way.

    Any number of event loops may use an engine. `tokenizer`: makes the one for this process, which the engine's process
    does not share. `command`: what to start in place of the usual process; it has to call `run_child`.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        cache_dir: Path | None = None,
        process: ProcessSettings | None = None,
        tokenizer: Callable[[], Tokenizer] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        settings = process or ProcessSettings()
        start = Start(options, None if cache_dir is None else str(cache_dir), settings.heartbeat, settings.warm_up)
        self._pid = os.getpid()
        self._closed = False
        self._requests = OpenRequests()
        self._supervisor = Supervisor(command, start, settings, self._requests)
        self._supervisor.start()
        atexit.register(self._stop)
        try:
            self._tokenizer = self._made_meanwhile(tokenizer)
            self._requests.started.result()
        except BaseException:
            self._stop()
            raise

    @classmethod
    def load(
        cls,
        model: str | EngineOptions,
        *,
        cache_dir: Path | None = None,
        process: ProcessSettings | None = None,
        **settings: Any,
    ) -> ProcessEngine:
        """Load a model, named and set as for `LLM`; blocks until it is ready. Raises as `load_engine` does."""
        from slipstream.engine.model_tokenizer import load_tokenizer  # reads model files, which fakes have none of

        if not isinstance(model, EngineOptions):
            model = EngineOptions.from_flat(model=model, **settings)
        elif settings:
            raise ConfigError("settings go into the EngineOptions.", where=", ".join(settings))
        options = model
        return cls(
            options,
            cache_dir=cache_dir,
            process=process,
            tokenizer=lambda: load_tokenizer(options, cache_dir=cache_dir),
        )

    @property
    def ready(self) -> bool:
        return self._requests.ready and not self._closed

    @property
    def info(self) -> EngineInfo:
        assert self._requests.info is not None  # construction has waited for it
        return self._requests.info

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Safe to use from any thread."""
        return self._tokenizer

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        """Raises RequestError before any work, EngineUnavailableError while there is no process, EngineError."""
        self._require_open(request.request_id)
        entered = self._requests.enter(request, self._supervisor.send)
        if entered is None:
            self._require_open(request.request_id)
            raise EngineUnavailableError(
                "the engine is being restarted.",
                where=f"request {request.request_id}",
                fix="Try again later.",
                retry_after=max(0.0, self._supervisor.ready_at - time.monotonic()),
            )
        handle, stream = entered
        try:
            async with aclosing(stream.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._requests.leave(handle, self._supervisor.send)

    async def abort(self, request_id: str) -> None:
        """Its stream ends with reason "abort"; nothing happens if there is no such request."""
        self._requests.abort(request_id, self._supervisor.send)

    def stats(self) -> EngineStats:
        """As of the last step; totals go on over restarts."""
        return self._requests.stats

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        return await asyncio.wrap_future(self._requests.ask(request_id, self._supervisor.send))

    async def close(self) -> None:
        await asyncio.to_thread(self._stop)

    def kept_stderr(self) -> str:
        """The last 64 KiB that the process, or the one before it, wrote to stderr."""
        return self._supervisor.kept_stderr

    def _made_meanwhile(self, tokenizer: Callable[[], Tokenizer] | None) -> Tokenizer | None:
        """While the other process starts."""
        try:
            return None if tokenizer is None else tokenizer()
        except SlipstreamError:
            self._requests.started.result()  # what the engine has to say of the model says more
            raise

    def _stop(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            self._supervisor.close()
        atexit.unregister(self._stop)

    def _require_open(self, request_id: str) -> None:
        where = f"request {request_id}"
        if self._pid != os.getpid():
            raise EngineError(
                "the engine belongs to another process, which this one was forked from.",
                where=where,
                fix="Make the engine after the fork.",
            )
        if self._closed:
            raise EngineError("the engine is closed.", where=where)
        failure = self._requests.failure
        if failure is not None:
            error = EngineError(f"the engine has stopped: {failure}", where=where, fix="Make a new engine.")
            raise error from failure
