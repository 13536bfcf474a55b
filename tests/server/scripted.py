"""An engine that says what it is told to, in pieces, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.engine.request import FinishReason


class ScriptedEngine(EchoEngine):
    """Answers request i with text i (the last one for all that follow), in pieces of `size` characters; each counts as
    one token. `cached` prompt tokens are said to come from the cache."""

    def __init__(
        self,
        *texts: str,
        size: int = 3,
        reason: FinishReason = "stop",
        stop_reason: str | None = None,
        cached: int = 0,
    ) -> None:
        super().__init__()
        self.texts = list(texts)
        self.requests: list[GenerationRequest] = []
        self._size = size
        self._reason = reason
        self._stop_reason = stop_reason
        self._cached = cached

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        text = self.texts[min(len(self.requests), len(self.texts) - 1)]
        self.requests.append(request)
        pieces = [text[i : i + self._size] for i in range(0, len(text), self._size)] or [""]
        stats = CompletionStats(len(request.prompt_token_ids), len(pieces), self._cached, 0, 0.0, 0.0, 0.0, 0.0)
        for index in range(request.params.n):
            for number, piece in enumerate(pieces, 1):
                last = number == len(pieces)
                yield OutputDelta(
                    request.request_id,
                    index,
                    piece,
                    (number,),
                    finish_reason=self._reason if last else None,
                    stop_reason=self._stop_reason if last else None,
                    stats=stats if last else None,
                )

    def prompts(self, decode: object) -> Sequence[str]:
        return [decode(each.prompt_token_ids, skip_special_tokens=False) for each in self.requests]  # type: ignore[operator]
