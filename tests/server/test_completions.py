import json

import pytest

from tests.server.serving import client_for, echo_app

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


async def post(body, path="/v1/completions", app=None, headers=None):
    async with client_for(app or echo_app()) as client:
        return await client.post(path, json=body, headers=headers)


def events(response):
    """Data of the server-sent events; the last must be [DONE]."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


async def test_whole_answer():
    response = await post({"model": "tiny", "prompt": "abc"})
    assert response.status_code == 200
    answer = response.json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer == {
        "object": "text_completion",
        "created": 1_800_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_stream():
    response = await post({"prompt": "ab", "stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    first, second, last = events(response)
    assert [each["choices"][0]["text"] for each in (first, second)] == ["a", "b"]
    assert (first["choices"][0]["finish_reason"], second["choices"][0]["finish_reason"]) == (None, "stop")
    assert first["usage"] is None
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
