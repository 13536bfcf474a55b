"""Bodies with a great many mistakes: one mistake is enough, and none of the others is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from slipstream.server.openapi import _body_kinds
from slipstream.server.schema.base import Items, RequestModel
from slipstream.server.schema.completions import CompletionRequest
from tests.server.serving import error_of, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

CHAT = "/v1/chat/completions"


def parts_of(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts_of(item)


def test_every_list_of_every_body_is_left_at_its_first_wrong_item() -> None:
    kinds = [kind for kind in _body_kinds(RequestModel) if kind is not RequestModel]
    lists = [part for kind in kinds for part in parts_of(kind.__pydantic_core_schema__) if part.get("type") == "list"]
    assert len(lists) > 20
    assert all(part.get("fail_fast") for part in lists)


def test_one_problem_for_each_type_that_was_tried() -> None:
    body = b'{"prompt": [' + b", ".join([b"null"] * 5000) + b"]}"
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate_json(body)
    assert caught.value.error_count() == 4
    assert TypeAdapter(Items[int]).validate_python([1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [None] * 200}, "prompt[0]"),
        ("/v1/completions", {"prompt": [[1], [2, "a"]]}, "prompt[1][1]"),
        ("/v1/completions", {"prompt": "a", "stop": ["a", 7]}, "stop[1]"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, {}, {}]}, "messages[1].role"),
        (CHAT, {"messages": [{"role": "user", "content": ["a", *[1] * 200]}]}, "messages[0].content[1]"),
        ("/v1/responses", {"input": [1] * 200}, "input[0]"),
        ("/detokenize", {"tokens": [1, *[""] * 200]}, "tokens[1]"),
    ],
)
async def test_the_first_wrong_item_is_named(path: str, body: dict[str, Any], param: str) -> None:
    response = await post(body, path)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("extra", [{f"f{i}": 1 for i in range(101)}, {"logit_bias": {str(i): "" for i in range(101)}}])
async def test_so_many_mistakes_that_none_is_named(extra: dict[str, Any]) -> None:
    response = await post({"prompt": "a", **extra})
    assert response.status_code == 400
    assert "the body has 101 fields that are not known or have wrong values" in error_of(response)["message"]
    fewer = {n: dict(list(v.items())[1:]) if isinstance(v, dict) else v for n, v in list(extra.items())[-100:]}
    assert error_of(await post({"prompt": "a", **fewer}))["param"] in ("f1", "logit_bias.1")
