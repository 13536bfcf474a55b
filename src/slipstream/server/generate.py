"""From a job (prompts and parameters) to the deltas of all its completions, through one bounded buffer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from slipstream.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from slipstream.engine.protocol import Engine, GenerationRequest, RequestSpeculation
from slipstream.errors import DeadlineError, EngineError, GrammarError, SlipstreamError
from slipstream.sampling.params import SamplingParams
from slipstream.server.errors import SlowClientError
from slipstream.server.request_ids import engine_id

logger = logging.getLogger("slipstream.server")


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request asks of the engine: n completions of each prompt, all with the same parameters.

    `id` is the HTTP request's. Completion i of prompt p is choice p * n + i.
    """

    id: str
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    timeout: float | None = None  # seconds
    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    speculative: RequestSpeculation | None = None

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def requests(self) -> list[GenerationRequest]:
        """One per prompt, with ids of their own."""
        return [self._request(number, prompt) for number, prompt in enumerate(self.prompts)]

    def _request(self, number: int, prompt: Prompt) -> GenerationRequest:
        own_id = self.id if len(self.prompts) == 1 else f"{self.id}-{number}"
        return GenerationRequest(
            engine_id(self.tenant, own_id),
            prompt.token_ids,
            self.params,
            prompt.text,
            priority=self.priority,
            timeout=self.timeout,
            cache_salt=self.cache_salt,
            tenant=self.tenant,
            speculative=self.speculative,
        )


class DeltaStream:
    """The deltas of a job's requests, in batches of what has come since the last one; `index` is the choice's.

    `start` sends the requests off; `close` aborts what still runs and may be called twice. A reader that is more than
    `buffer` deltas behind has its requests aborted at once and gets SlowClientError. `ping`: seconds, to twice
    that, without a call of `wrote` after which a batch is handed over although it is empty, or `take_ping` is true.
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        *,
        buffer: int | None = None,
        ping: float | None = None,
        on_close: Callable[[DeltaStream], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_close = on_close
        self._job = job
        self._buffer = buffer
        self._ping = ping
        self._ready: list[OutputDelta] = []
        self._silent = True  # since the last tick
        self._ping_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._open = 0

    def start(self) -> None:
        requests = self._job.requests()
        self._open = len(requests)
        self._tasks = [asyncio.create_task(self._pump(number, each)) for number, each in enumerate(requests)]
        self._arm()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._on_close is not None:
            self._on_close(self)
        self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """End it with this error: the reader gets it with its next batch."""
        self._failure = self._failure or error
        self._stop()
        self._wake.set()

    @property
    def failure(self) -> BaseException | None:
        """What ended it early."""
        return self._failure

    async def batch(self) -> list[OutputDelta] | None:
        """What is there, at least one delta unless it is time for a ping; None at the end. Raises what ended it."""
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if not self._open:
                return None
            if self._ping_due:
                self._ping_due = False
                return []
            self._wake.clear()
            await self._wake.wait()
        if isinstance(self._failure, SlowClientError):
            raise self._failure  # what is buffered would only be more of what is not read
        taken, self._ready = self._ready, []
        return taken

    def error_of(self, delta: OutputDelta) -> SlipstreamError | None:
        """See `failure_of`."""
        return failure_of(delta, self._job.params)

    def wrote(self) -> None:
        """The client was sent something."""
        self._silent = self._ping_due = False

    def take_ping(self) -> bool:
        """Whether it is time for a ping, although deltas come: they may all be held back, as inside a tool call."""
        due, self._ping_due = self._ping_due, False
        return due

    async def _pump(self, number: int, request: GenerationRequest) -> None:
        first = number * self._job.params.n
        try:
            async with aclosing(_closable(self._engine.generate(request))) as deltas:
                async for delta in deltas:
                    if self._buffer is not None and len(self._ready) >= self._buffer:
                        raise SlowClientError("the client reads too slowly.", where=self._job.id)
                    self._ready.append(delta if first == 0 else replace(delta, index=first + delta.index))
                    self._wake.set()
        except SlipstreamError as error:
            self.fail(error)
        except Exception as error:  # whatever it is, the reader must learn of it, and not its details
            logger.exception("a defect ended request %s", request.request_id)
            self.fail(EngineError(f"a defect ended the request ({type(error).__name__})."))
        finally:
            self._open -= 1
            self._wake.set()

    def _arm(self) -> None:
        """One timer per interval, not one per token."""
        if self._ping is not None:
            self._timer = asyncio.get_running_loop().call_later(self._ping, self._tick)

    def _tick(self) -> None:
        if self._silent:
            self._ping_due = True
            self._wake.set()
        self._silent = True
        self._arm()

    def _stop(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()


def _closable(deltas: AsyncIterator[OutputDelta]) -> AsyncGenerator[OutputDelta, None]:
    """A generator whatever kind of iterator the engine returns."""
    if isinstance(deltas, AsyncGenerator):
        return deltas

    async def each() -> AsyncGenerator[OutputDelta, None]:
        async for delta in deltas:
            yield delta

    return each()


async def collect(
    stream: DeltaStream, job: Job, on_delta: Callable[[OutputDelta], None] | None = None
) -> list[RequestOutput]:
    """All of a stream that is not yet started, one RequestOutput per prompt; closes it.

    Raises as `raise_if_useless` does, and what the engine raises.
    """
    n = job.params.n
    outputs = [RequestOutput.empty(job.id, each.text, each.token_ids, n) for each in job.prompts]
    stream.start()
    try:
        while (batch := await stream.batch()) is not None:
            for delta in batch:
                if on_delta is not None:
                    on_delta(delta)
                outputs[delta.index // n].add(replace(delta, index=delta.index % n))
    finally:
        await stream.close()
    raise_if_useless(outputs, job.params)
    return outputs


def failure_of(completion: OutputDelta | CompletionOutput, params: SamplingParams) -> SlipstreamError | None:
    """What ended it, if that was an error: GrammarError where it was the request's own grammar, else EngineError."""
    if completion.finish_reason != "error":
        return None
    what = completion.error or "the completion failed."
    if completion.error_kind == "grammar" and params.grammar is not None:
        field = params.grammar.name_of()
        return GrammarError(what.removeprefix(f"{field}: "), where=field)
    return EngineError(what)


def raise_if_useless(outputs: Sequence[RequestOutput], params: SamplingParams) -> None:
    """Raises what `failure_of` a completion says, and DeadlineError if the deadline passed before any token."""
    completions = [each for output in outputs for each in output.outputs]
    for each in completions:
        failure = failure_of(each, params)
        if failure is not None:
            raise failure
    if all(each.finish_reason == "deadline" and not each.token_ids for each in completions):
        raise DeadlineError("the deadline passed before the first token.", fix="Allow more time.")
