"""The OpenAPI document is fuzzed: whatever comes, no route answers with 500, and errors have OpenAI's form."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from slipstream.engine.echo import EchoEngine
from tests.server.serving import byte_tokenizer, echo_app, served


class Lasting(EchoEngine):
    """Every call of the fuzzer starts and stops the application; the engine goes on."""

    async def close(self) -> None:
        pass


APP = echo_app(Lasting(byte_tokenizer().decode), model=served(max_model_len=1024), max_n=4)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


@SCHEMA.parametrize()
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_a_500(case: Case) -> None:
    response = case.call()
    assert response.status_code < 500 or response.status_code in (503, 504), response.text
    if response.status_code >= 400:
        error = json.loads(response.text)["error"]
        assert error["message"]
        assert error["type"]


@pytest.mark.fast
def test_the_document_names_every_route_and_field():
    document = APP.openapi()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models"} <= set(
        document["paths"]
    )
    schemas = document["components"]["schemas"]
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    text = json.dumps(document)
    for reference in set(text.split('"#/components/schemas/')[1:]):
        assert reference.partition('"')[0] in schemas
