import pytest

from tests.server.serving import client_for, echo_app
from tests.server.test_completions import events, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
RENDERED = "user\nhi\nassistant\n"  # control tokens are not shown


async def chat(**fields):
    return await post({**HELLO, **fields}, "/v1/chat/completions")


async def test_whole_answer():
    answer = (await chat()).json()
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": RENDERED, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_stream_begins_with_the_role_and_ends_with_the_reason_alone():
    first, *middle, last = events(await chat(stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["choices"][0]["delta"]["content"] for each in middle) == RENDERED
    assert {each["choices"][0]["finish_reason"] for each in middle} == {None}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_other_routes():
    async with client_for(echo_app()) as client:
        for path in ("/health", "/ready", "/version", "/features", "/config", "/v1/models", "/openapi.json"):
            assert (await client.get(path)).status_code == 200, path
