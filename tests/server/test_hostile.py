"""Requests that were sent to do harm: none is a 500, and none makes the server work for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.server.tools.plan import plan_tools
from tests.server.live import until
from tests.server.serving import byte_tokenizer, client_for, echo_app, error_of, post, served

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

CHAT = "/v1/chat/completions"
NO_TOOLS = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
FUNCTION = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def plain_app() -> Any:
    """Its template knows no tools, so the server writes them out."""
    model = served(byte_tokenizer(chat_template=NO_TOOLS), max_model_len=4096)
    return echo_app(model=model, tool_parser="hermes")


async def prompt_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    response = await post({"messages": messages, "tools": tools}, CHAT, app=plain_app())
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def test_calls_beside_content_in_parts_are_written_out():
    text = await prompt_of([{"role": "assistant", "content": PARTS, "tool_calls": [FUNCTION]}])
    assert text.startswith('assistant:one\ntwo\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')


async def test_the_result_of_a_tool_in_parts_is_written_out():
    text = await prompt_of([{"role": "tool", "tool_call_id": "1", "content": PARTS}])
    assert text.startswith("user:<tool_response>\none\ntwo\n</tool_response>")


async def test_tools_are_described_after_a_system_message_in_parts():
    tool = {"type": "function", "function": {"name": "f"}}
    response = await post(
        {"messages": [{"role": "system", "content": PARTS}], "tools": [tool]}, "/tokenize", app=plain_app()
    )
    assert response.status_code == 200
    text = await prompt_of([{"role": "system", "content": PARTS}], [tool])
    assert text.startswith("system:one\ntwo\n\nYou can call these functions.")


async def test_parts_that_are_no_text_are_named():
    message = {"role": "assistant", "content": [{"type": "image_url"}], "tool_calls": [FUNCTION]}
    response = await post({"messages": [message]}, CHAT, app=plain_app())
    assert response.status_code == 400
    assert "messages[0].content[0]" in error_of(response)["message"]


@pytest.mark.parametrize("name", ["self", "template", "environment"])
async def test_any_name_may_go_to_the_template(name):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "chat_template_kwargs": {name: 1}}
    assert (await post(body, CHAT)).status_code == 200


@pytest.mark.parametrize("top_k", [2**31, 2**63, 10**30])
async def test_a_top_k_beyond_what_kernels_take(top_k):
    response = await post({"prompt": "a", "top_k": top_k})
    assert response.status_code == 400
    assert error_of(response)["param"] == "top_k"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bad_words", ["a"] * 257),
        ("bad_words", ["a" * 1001]),
        ("stop_token_ids", [1] * 1025),
        ("allowed_token_ids", [1] * (2**18 + 1)),
        ("logit_bias", {str(token): 1 for token in range(4097)}),
    ],
)
async def test_lists_that_would_hold_the_engine_up(field, value):
    response = await post({"prompt": "a", field: value})
    assert response.status_code == 400
    assert error_of(response)["param"] == field


@pytest.mark.parametrize(("field", "value"), [("bad_words", ["a" * 1000] * 256), ("stop_token_ids", [1] * 1024)])
async def test_lists_of_the_largest_size(field, value):
    assert (await post({"prompt": "a", field: value})).status_code == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens", CHAT])
async def test_at_most_128_tools(path):
    def tool(name: str) -> dict[str, Any]:
        named = {"name": name}
        return {"type": "custom", **named} if "messages" in path else {"type": "function", **named, "function": named}

    async def ask(count: int) -> Any:
        tools = [tool(f"t{number}") for number in range(count)]
        if path == "/v1/responses":
            body: dict[str, Any] = {"input": "a", "tools": tools, "tool_choice": "none"}
        else:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tools": tools}
            body["tool_choice"] = "none" if path == CHAT else {"type": "none"}
        if path == "/v1/messages":
            body["max_tokens"] = 4
        return await post(body, path)

    assert (await ask(128)).status_code == 200
    response = await ask(129)
    assert response.status_code == 400
    assert "at most 128 tools, got 129" in response.json()["error"]["message"]


async def test_more_messages_than_the_context_holds_tokens_are_not_rendered():
    messages = [{"role": "user", "content": ""}] * 256
    response = await post({"messages": messages}, CHAT)
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages"


async def test_long_lists_of_tokens_are_decoded_beside_the_event_loop(monkeypatch):
    """Decoding a million tokens takes seconds, in which no other stream would get a token."""
    tokenizer = byte_tokenizer()
    seen: list[bool] = []
    decode, id_to_token = type(tokenizer).decode, type(tokenizer).id_to_token

    def watched(method: Any) -> Any:
        def call(self: Any, *args: Any, **values: Any) -> Any:
            seen.append(threading.current_thread() is threading.main_thread())
            return method(self, *args, **values)

        return call

    app = echo_app(EchoEngine(tokenizer.decode), model=served(tokenizer))
    monkeypatch.setattr(type(tokenizer), "decode", watched(decode))
    monkeypatch.setattr(type(tokenizer), "id_to_token", watched(id_to_token))
    async with client_for(app) as client:
        response = await client.post("/detokenize", json={"tokens": [65] * 3000})
        assert len(response.json()["prompt"]) == 3000
        assert seen
        assert not any(seen)
        response = await client.post("/tokenize", json={"prompt": "a" * 3000, "return_token_strs": True})
        assert len(response.json()["token_strs"]) == 3000
        assert not any(seen)


@pytest.mark.parametrize("names", [("a", "a-1"), ("a-1", "a")])
async def test_an_id_cannot_take_the_place_of_another_requests_prompt(names):
    """The engine knows the prompts of request `a` as `a-0` and `a-1`, and refuses an id that is running."""
    held = asyncio.Event()

    class Held(EchoEngine):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
            running.append(request.request_id)
            await held.wait()
            async for delta in super().generate(request):
                yield delta

    running: list[str] = []
    async with client_for(echo_app(Held(byte_tokenizer().decode))) as client:

        def ask(name: str) -> Any:
            body = {"prompt": ["x", "y"] if name == "a" else "x"}
            return client.post("/v1/completions", json=body, headers={"X-Request-Id": name})

        first = asyncio.create_task(ask(names[0]))
        await until(lambda: running)
        second = asyncio.create_task(ask(names[1]))
        await until(lambda: len(running) == 3)
        held.set()
        answers = [await first, await second]
    assert [each.status_code for each in answers] == [200, 200]
    assert len(set(running)) == 3
    assert answers[0].headers["x-request-id"] == names[0]
    assert answers[1].headers["x-request-id"].startswith(f"{names[1]}-")


@pytest.mark.parametrize("part", ["tool_calls", "content", "arguments", "chat_template_kwargs"])
async def test_a_great_many_values_without_text_are_counted_first(monkeypatch, part):
    """Two million `{}` have no characters that a bound of the text would see, and took 16 s on the event loop."""
    most = 65_536 + 16 * 256  # of this context
    worked: list[object] = []
    monkeypatch.setattr("slipstream.server.chat_plan.plan_tools", lambda *values, **named: worked.append(values))
    empty: list[Any] = [{}] * (most + 1)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    body: dict[str, Any] = {"messages": [message]}
    if part == "chat_template_kwargs":
        body[part] = {"names": empty}
    elif part == "arguments":
        message["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": {"a": empty}}}]
    else:
        message[part] = empty
    response = await post(body, CHAT)
    assert response.status_code == 400
    assert error_of(response)["param"] == ("chat_template_kwargs" if part == "chat_template_kwargs" else "messages")
    assert f"at most {most} in all of messages, tools, chat_template_kwargs" in error_of(response)["message"]
    assert not worked


@pytest.mark.parametrize("over", [0, 1])
async def test_the_most_values(over):
    """The list of messages, its item's two fields, the name in the template's arguments, and the list of that."""
    values = [0] * (65_536 + 16 * 256 - 4 + over)
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "chat_template_kwargs": {"names": values}}
    assert (await post(body, CHAT)).status_code == (400 if over else 200)


async def test_long_messages_are_prepared_beside_the_event_loop(monkeypatch):
    threads: list[bool] = []

    def watched(*values: Any, **named: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return plan_tools(*values, **named)

    monkeypatch.setattr("slipstream.server.chat_plan.plan_tools", watched)
    for content in ("a", [{"type": "text", "text": ""}] * 400):
        await post({"messages": [{"role": "user", "content": content}], "max_tokens": 1}, CHAT)
    assert threads == [True, False]


async def test_at_most_128_allowed_tools():
    tool = {"type": "function", "function": {"name": "f"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool] * 129}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice}
    response = await post(body, CHAT)
    assert error_of(response)["param"] == "tool_choice.allowed_tools.tools"
    assert "at most 128 tools, got 129" in error_of(response)["message"]
