"""An engine without a model: it repeats the prompt. The fake that everything downstream is tested with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import EngineInfo, EngineStats, GenerationRequest
from slipstream.engine.timeline import RequestTimeline
from slipstream.errors import EngineError, RequestError


def spell_ids(token_ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in token_ids)


class EchoEngine:
    """Streams the prompt's tokens back, one per `delay` seconds, cut at max_tokens ("length") or at the end ("stop").

    `fail_after`: raise EngineError after that many tokens, to test how callers see a crash.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str] = spell_ids,
        *,
        delay: float = 0.0,
        fail_after: int | None = None,
    ) -> None:
        self._decode = decode
        self._delay = delay
        self._fail_after = fail_after
        self._aborted: set[str] = set()
        self._running: set[str] = set()
        self._closed = False
        self._num_output_tokens = 0
        self._num_finished = 0
        self._timelines: dict[str, RequestTimeline] = {}

    @property
    def ready(self) -> bool:
        return not self._closed

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(model="echo", max_model_len=1 << 20, vocab_size=1 << 20)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        if self._closed:
            raise EngineError("the engine is closed.", where=request.request_id)
        if not request.prompt_token_ids:
            raise RequestError("the prompt is empty.", where=request.request_id)
        if request.request_id in self._running:
            raise RequestError("a request with this id is running.", where=request.request_id)
        self._running.add(request.request_id)
        try:
            for index in range(request.params.n):
                async for delta in self._completion(request, index):
                    yield delta
        finally:
            self._running.discard(request.request_id)
            self._aborted.discard(request.request_id)

    async def _completion(self, request: GenerationRequest, index: int) -> AsyncIterator[OutputDelta]:
        limit = request.params.max_tokens
        tokens = request.prompt_token_ids if limit is None else request.prompt_token_ids[:limit]
        for count, token in enumerate(tokens, 1):
            await asyncio.sleep(self._delay)
            if self._closed:
                raise EngineError("the engine was closed.", where=request.request_id)
            if self._fail_after is not None and count > self._fail_after:
                raise EngineError("the engine crashed on purpose.", where=request.request_id)
            stats = CompletionStats(len(request.prompt_token_ids), count, 0, 0, 0.0, self._delay, self._delay, None)
            if request.request_id in self._aborted:
                yield OutputDelta(request.request_id, index, "", (), finish_reason="abort", stats=stats)
                return
            self._num_output_tokens += 1
            last = count == len(tokens)
            cut = limit is not None and limit <= count
            yield OutputDelta(
                request.request_id,
                index,
                self._decode((token,)),
                (token,),
                finish_reason=None if not last else "length" if cut else "stop",
                stats=stats if last else None,
            )
        self._num_finished += 1

    async def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._aborted.add(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_output_tokens=self._num_output_tokens,
            num_finished=self._num_finished,
        )

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        return self._timelines.get(request_id)

    async def close(self) -> None:
        self._closed = True
