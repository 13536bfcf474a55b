"""The OpenAPI document is fuzzed: whatever comes, no route answers with 500, and errors have their API's form."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case

from slipstream.engine.echo import EchoEngine
from tests.server.serving import byte_tokenizer, echo_app, served


class Lasting(EchoEngine):
    """Every call of the fuzzer starts and stops the application; the engine goes on."""

    async def close(self) -> None:
        pass


APP = echo_app(Lasting(byte_tokenizer().decode), model=served(max_model_len=1024), max_n=4)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


# What takes the time is drawing bodies: a fifth of a second each for the routes with the largest schemas.
@SCHEMA.parametrize()
@settings(
    max_examples=8,
    phases=(Phase.generate,),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_a_500(case: Case) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "tiny"  # any other is a 404, and that is all that would be tested
    response = case.call()
    assert response.status_code < 500 or response.status_code in (503, 504), response.text
    if response.status_code >= 400:
        body = json.loads(response.text)
        assert body["error"]["message"]
        assert body["error"]["type"]
        assert (body.get("type") == "error") == case.path.startswith("/v1/messages")


@pytest.mark.fast
def test_the_document_names_every_route_and_field():
    document = APP.openapi()
    assert {
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/tokenize", "/detokenize", "/v1/models"),
    } <= set(document["paths"])
    schemas = document["components"]["schemas"]
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    text = json.dumps(document)
    for reference in set(text.split('"#/components/schemas/')[1:]):
        assert reference.partition('"')[0] in schemas
