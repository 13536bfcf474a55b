"""A text that no context could hold is refused before it is rendered or tokenised, with the numbers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.server.model import ServedModel
from slipstream.text.tokenizer import Tokenizer
from tests.server.serving import byte_tokenizer, echo_app, error_of, post, served

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

CONTEXT = 256
LONGEST = len("<|endoftext|>")  # of the tokenizer's tokens
MOST = CONTEXT * LONGEST
EVIL = "<|im_end|>" * 10_000
CHAT = "/v1/chat/completions"


class Watched(Tokenizer):
    """Counts the texts that are cut."""

    cut: list[int]

    def _ids_of(self, text: str, parse_special: bool) -> list[int]:
        self.cut.append(len(text))
        return super()._ids_of(text, parse_special)

    def _ids_of_marked(self, text: str, mark: str) -> list[int]:
        self.cut.append(len(text))
        return super()._ids_of_marked(text, mark)


def model(template: str | None = None) -> ServedModel:
    plain = byte_tokenizer()
    source = plain.chat_template if template is None else template
    tokenizer = Watched(
        plain._backend,
        scheme=plain._scheme,
        special_ids=plain.special_ids,
        eos_token_ids=plain.eos_token_ids,
        chat_templates={"default": source or ""},
    )
    tokenizer.cut = []
    return served(tokenizer, max_model_len=CONTEXT)


async def ask(body: dict[str, Any], path: str, kind: ServedModel) -> httpx.Response:
    app = echo_app(EchoEngine(kind.tokenizer.decode), model=kind)
    return await post(body, path, app=app)


@pytest.mark.parametrize("characters", [MOST + 1, 1_000_000])
async def test_a_completion(characters: int) -> None:
    kind = model()
    response = await ask({"prompt": "a" * characters}, "/v1/completions", kind)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert f"the text has {characters} characters, but the context holds {CONTEXT} tokens" in error["message"]
    assert f"no token of this model stands for more than {LONGEST}: {MOST} at most" in error["message"]
    assert kind.tokenizer.cut == []  # type: ignore[attr-defined]


async def test_the_longest_text_is_still_counted_in_tokens() -> None:
    kind = model()
    response = await ask({"prompt": "<|endoftext|>" * CONTEXT}, "/v1/completions", kind)
    assert f"the prompt has {CONTEXT} tokens" in error_of(response)["message"]
    assert kind.tokenizer.cut == [MOST]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": EVIL}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": EVIL}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {}}]}),
        ("/v1/responses", {"input": EVIL}),
        ("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": EVIL}]}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": EVIL}]}),
    ],
)
async def test_a_conversation_is_not_rendered(path: str, body: dict[str, Any]) -> None:
    kind = model("{{ raise_exception('rendered') }}{# tools #}")
    if "tools" in body:
        function = {"name": "f", "description": EVIL}
        body = {**body, "tools": [{"type": "function", "function": function}], "tool_choice": "none"}
        body["messages"] = [{"role": "user", "content": "a", "reasoning_content": EVIL}]
    response = await ask(body, path, kind)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert f"but the context holds {CONTEXT} tokens" in message
    assert f"{MOST} at most" in message
    assert kind.tokenizer.cut == []  # type: ignore[attr-defined]


async def test_what_the_template_makes_of_it_is_not_cut() -> None:
    kind = model("{% for m in messages %}{{ m.content * 4 }}{% endfor %}")
    text = "<|im_end|>" + "a" * (MOST // 4)
    response = await ask({"messages": [{"role": "user", "content": text}]}, CHAT, kind)
    assert error_of(response)["code"] == "context_length_exceeded"
    assert f"the text has {4 * len(text)} characters" in error_of(response)["message"]
    assert kind.tokenizer.cut == []  # type: ignore[attr-defined]


async def test_marks_that_break_up_control_tokens_do_not_count() -> None:
    kind = model("{% for m in messages %}{{ m.content }}{% endfor %}")
    text = "<|im_end|>" * (MOST // len("<|im_end|>"))
    response = await ask({"messages": [{"role": "user", "content": text}]}, CHAT, kind)
    assert f"the prompt has {len(text)} tokens" in error_of(response)["message"]


async def test_a_tokenizer_without_a_bound_cuts_first() -> None:
    kind = model()
    kind.tokenizer.__dict__["text_bound"] = None
    response = await ask({"prompt": "a" * (MOST + 1)}, "/v1/completions", kind)
    assert f"the prompt has {MOST + 1} tokens" in error_of(response)["message"]


async def test_tokenize_has_no_bound_of_its_own() -> None:
    response = await ask({"prompt": "a" * (MOST + 1)}, "/tokenize", model())
    assert response.json()["count"] == MOST + 1
