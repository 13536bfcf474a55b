"""The field `speculative` of requests, and what answers say of drafts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from slipstream.engine.outputs import CompletionStats, OutputDelta
from slipstream.engine.protocol import GenerationRequest, RequestSpeculation
from tests.server.scripted import ScriptedEngine
from tests.server.serving import echo_app, error_of, events, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


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
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_wish_reaches_the_engine(path: str, field: object, wish: RequestSpeculation | None) -> None:
    engine = ScriptedEngine("yes")
    body = {"prompt": "hi"} if path == "/v1/completions" else CHAT
    response = await post({**body, "speculative": field}, path, app=echo_app(engine))
    assert response.status_code == 200
    assert [each.speculative for each in engine.requests] == [wish]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"mode": "draft_head"}, "speculative.mode"),
        ({"num_tokens": -1}, "speculative.num_tokens"),
        ({"num_tokens": 65}, "speculative.num_tokens"),
        ({"tokens": 3}, "speculative.tokens"),
        ("off", "speculative"),
    ],
)
async def test_what_is_no_wish_is_refused_by_name(field: object, param: str) -> None:
    response = await post({"prompt": "hi", "speculative": field})
    assert response.status_code == 400
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


async def test_timings_tell_of_drafts() -> None:
    answer = (await post({**CHAT, "timings": True}, "/v1/chat/completions", app=echo_app(Drafting()))).json()
    timings = answer["timings"]
    assert (timings["draft_tokens"], timings["accepted_tokens"], timings["mean_accepted_length"]) == (3, 2, 3.0)
