import asyncio

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import RequestOutput
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import EngineError, RequestError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(name: str = "a", tokens: tuple[int, ...] = (1, 2, 3), **params) -> GenerationRequest:
    return GenerationRequest(name, tokens, SamplingParams(**params))


async def collect(engine: EchoEngine, asked: GenerationRequest) -> RequestOutput:
    output = RequestOutput.empty(asked.request_id, None, asked.prompt_token_ids, asked.params.n)
    async for delta in engine.generate(asked):
        output.add(delta)
    return output


def test_repeats_the_prompt():
    output = asyncio.run(collect(EchoEngine(), request()))
    assert output.outputs[0].token_ids == [1, 2, 3]
    assert output.outputs[0].text == "<1><2><3>"
    assert output.outputs[0].finish_reason == "stop"
    assert output.finished


def test_max_tokens_and_n():
    output = asyncio.run(collect(EchoEngine(), request(max_tokens=2, n=2)))
    assert [completion.token_ids for completion in output.outputs] == [[1, 2], [1, 2]]
    assert {completion.finish_reason for completion in output.outputs} == {"length"}


def test_abort_ends_the_stream():
    async def scenario() -> list[str | None]:
        engine = EchoEngine()
        reasons = []
        async for delta in engine.generate(request()):
            reasons.append(delta.finish_reason)
            await engine.abort("a")
        assert engine.stats().num_running == 0
        return reasons

    assert asyncio.run(scenario()) == [None, "abort"]


def test_errors_are_typed():
    async def closed() -> None:
        engine = EchoEngine()
        await engine.close()
        await collect(engine, request())

    with pytest.raises(EngineError, match="closed"):
        asyncio.run(closed())
    with pytest.raises(EngineError, match="crashed"):
        asyncio.run(collect(EchoEngine(fail_after=1), request()))
    with pytest.raises(RequestError, match="empty"):
        asyncio.run(collect(EchoEngine(), request(tokens=())))
