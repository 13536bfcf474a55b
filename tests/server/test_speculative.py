"""The field `speculative` of requests, and what answers say of drafts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import EngineStats, GenerationRequest, RequestSpeculation
from tests.server.scripted import ScriptedEngine
from tests.server.serving import echo_app, error_of, events, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "model": "tiny", "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
}
EXTRA: dict[str, Any] = {"speculative": {"mode": "ngram", "num_tokens": 3}, "timings": True}
LAST = "message_delta"  # of a message's stream, before its stop


class Drafting(ScriptedEngine):
    """Two steps: one token, then two drafted ones and a third."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        self.requests.append(request)
        stats = CompletionStats(3, 4, 0, 0, 0.0, 0.0, 0.0, 0.0, 1, 3, 2)
        yield OutputDelta(request.request_id, 0, "é", (1,))
        yield OutputDelta(
            request.request_id,
            0,
            "ñøx",
            (2, 3, 4),
            finish_reason="stop",
            stats=stats,
            num_accepted=2,
            accepted_characters=2,
        )


@pytest.mark.parametrize(
    ("field", "wish"),
    [
        (None, None),
        ({"mode": "off"}, RequestSpeculation("off")),
        ({"num_tokens": 3}, RequestSpeculation("auto", 3)),
        ({"mode": "ngram", "num_tokens": 0}, RequestSpeculation("ngram", 0)),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_the_wish_reaches_the_engine(path: str, field: object, wish: RequestSpeculation | None) -> None:
    engine = ScriptedEngine("yes")
    response = await post({**BODIES[path], "speculative": field}, path, app=echo_app(engine))
    assert response.status_code == 200
    assert [each.speculative for each in engine.requests] == [wish]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"mode": "eagle"}, "speculative.mode"),
        ({"num_tokens": -1}, "speculative.num_tokens"),
        ({"num_tokens": 65}, "speculative.num_tokens"),
        ({"tokens": 3}, "speculative.tokens"),
        ("off", "speculative"),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_what_is_no_wish_is_refused_by_name(path: str, field: object, param: str) -> None:
    response = await post({**BODIES[path], "speculative": field}, path)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{param}: ")
    if path != "/v1/messages":  # Anthropic's errors name no field
        assert error_of(response)["param"] == param


async def test_a_stream_tells_the_characters_of_accepted_drafts() -> None:
    chunks = events(await post({**CHAT, "stream": True}, "/v1/chat/completions", app=echo_app(Drafting())))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [(c["delta"].get("content"), c.get("accepted_characters")) for c in choices] == [
        ("", None),
        ("é", None),
        ("ñøx", 2),
        (None, None),
    ]


def drafts_of(timings: Any) -> tuple[int, int, float]:
    return timings["draft_tokens"], timings["accepted_tokens"], timings["mean_accepted_length"]


@pytest.mark.parametrize("path", BODIES)
async def test_timings_tell_of_drafts(path: str) -> None:
    app = echo_app(Drafting())
    assert drafts_of((await post({**BODIES[path], "timings": True}, path, app=app)).json()["timings"]) == (3, 2, 3.0)
    assert "timings" not in (await post(BODIES[path], path, app=app)).json()
    for asked in (True, None):
        streamed = await post({**BODIES[path], "timings": asked, "stream": True}, path, app=app)
        assert ("timings" in streamed.text) is (asked is True)


async def test_the_official_client_of_messages() -> None:
    engine = Drafting()
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(echo_app(engine)), base_url="http://tiny")
    client = anthropic.AsyncAnthropic(base_url="http://tiny", api_key="none", http_client=http, max_retries=0)
    asked: Any = {"model": "tiny", "max_tokens": 9, **CHAT, "extra_body": EXTRA}
    answer = await client.messages.create(**asked)
    assert drafts_of(answer.timings) == (3, 2, 3.0)  # type: ignore[attr-defined]
    [last] = [event async for event in await client.messages.create(**asked, stream=True) if event.type == LAST]
    assert drafts_of(last.timings) == (3, 2, 3.0)  # type: ignore[union-attr]
    assert [each.speculative for each in engine.requests] == [RequestSpeculation("ngram", 3)] * 2


async def test_the_official_client_of_responses() -> None:
    engine = Drafting()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(echo_app(engine)))
    client = openai.AsyncOpenAI(base_url="http://tiny/v1", api_key="none", http_client=http, max_retries=0)
    answer = await client.responses.create(model="tiny", input="hi", extra_body=EXTRA)
    assert drafts_of(answer.timings) == (3, 2, 3.0)  # type: ignore[attr-defined]
    stream = await client.responses.create(model="tiny", input="hi", extra_body=EXTRA, stream=True)
    [done] = [event async for event in stream if event.type == "response.completed"]
    assert drafts_of(done.response.timings) == (3, 2, 3.0)  # type: ignore[attr-defined]
    assert [each.speculative for each in engine.requests] == [RequestSpeculation("ngram", 3)] * 2


class Useless(EchoEngine):
    def stats(self) -> EngineStats:
        return replace(super().stats(), speculation_warning="speculation is of no use.", time_saved=-1.5)


async def test_speculation_that_is_of_no_use_is_told_wherever_one_looks() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(echo_app(Useless())), base_url="http://tiny") as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (
            200,
            {"status": "ok", "warnings": ["speculation is of no use."]},
        )
        assert (await client.get("/config")).json()["warnings"][-1] == "speculation is of no use."
        metrics = (await client.get("/metrics")).text
    assert 'slipstream:speculation_useless{engine="0",model_name="tiny"} 1.0' in metrics
    assert 'slipstream:speculation_saved_seconds{engine="0",model_name="tiny"} -1.5' in metrics
    async with httpx.AsyncClient(transport=httpx.ASGITransport(echo_app()), base_url="http://tiny") as client:
        assert 'slipstream:speculation_useless{engine="0",model_name="tiny"} 0.0' in (await client.get("/metrics")).text
