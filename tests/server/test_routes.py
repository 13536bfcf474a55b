"""The smaller routes, request ids, and the errors that no route raises."""

import httpx
import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.features import FEATURES
from slipstream.server.keys import parse_keys
from slipstream.server.routes.docs import docs_page
from slipstream.version import installed_version
from tests.server.live import live
from tests.server.serving import byte_tokenizer, client_for, echo_app, error_of, events, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


async def get(path, app=None, **values):
    async with client_for(app or echo_app()) as client:
        return await client.get(path, **values)


async def test_probes_answer_head_too():
    async with live(EchoEngine(byte_tokenizer().decode)) as server, httpx.AsyncClient(base_url=server.url) as client:
        for path in ("/health", "/ready"):
            asked, head = await client.get(path), await client.head(path)
            assert head.status_code == 200
            assert head.content == b""
            assert head.headers["content-length"] == asked.headers["content-length"]
        server.context.lifecycle.draining = True
        assert (await client.head("/ready")).status_code == 503
        assert (await client.head("/health")).status_code == 200
        server.context.lifecycle.draining = False
    assert "head" not in echo_app().openapi()["paths"]["/health"]


async def test_models():
    listed = (await get("/v1/models")).json()
    assert [each["id"] for each in listed["data"]] == ["tiny", "also-tiny"]
    assert listed["data"][0] == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "slipstream",
        "root": "tiny",
        "max_model_len": 256,
    }
    assert (await get("/v1/models/also-tiny")).json()["id"] == "also-tiny"
    missing = await get("/v1/models/org/other")
    assert missing.status_code == 404
    assert error_of(missing)["code"] == "model_not_found"


async def test_tokenize_and_detokenize():
    text = "hé <|im_end|>"
    answer = (await post({"prompt": text}, "/tokenize")).json()
    assert answer["tokens"] == byte_tokenizer().encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 256
    back = (await post({"tokens": answer["tokens"]}, "/detokenize")).json()
    assert back == {"prompt": text}
    shown = (await post({"tokens": answer["tokens"], "skip_special_tokens": True}, "/detokenize")).json()
    assert shown == {"prompt": "hé "}


async def test_a_conversation_is_tokenized_as_the_chat_route_feeds_it():
    messages = [{"role": "user", "content": "a <|im_end|>"}]
    counted = (await post({"messages": messages, "return_token_strs": True}, "/tokenize")).json()
    answered = (await post({"messages": messages}, "/v1/chat/completions")).json()
    assert counted["count"] == answered["usage"]["prompt_tokens"]
    assert counted["token_strs"].count("<|im_end|>") == 1


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/tokenize", {}, "exactly one"),
        ("/tokenize", {"prompt": "a", "messages": []}, "exactly one"),
        ("/tokenize", {"text": "a"}, "not a field"),
        ("/detokenize", {"tokens": [100000]}, "must be below"),
        ("/detokenize", {"tokens": [-1]}, "greater than or equal"),
        ("/detokenize", {"tokens": "abc"}, "valid array"),
    ],
)
async def test_bad_bodies_of_tokenize(path, body, part):
    response = await post(body, path)
    assert response.status_code == 400
    assert part in error_of(response)["message"]


async def test_probes():
    engine = EchoEngine()
    app = echo_app(engine)
    assert (await get("/health", app)).json() == {"status": "ok"}
    assert (await get("/ready", app)).status_code == 200
    engine.crash()
    not_ready = await get("/ready", app)
    assert not_ready.status_code == 503
    assert "retry-after" in not_ready.headers
    assert (await get("/health", app)).status_code == 200
    engine.recover()
    assert (await get("/ready", app)).status_code == 200


async def test_a_draining_server_refuses_work_and_answers_probes():
    app = echo_app(drain_timeout=7.0)
    app.state.context.lifecycle.draining = True
    assert (await get("/ready", app)).status_code == 503
    assert (await get("/health", app)).status_code == 200
    assert (await get("/v1/models", app)).status_code == 200
    refused = await post({"prompt": "a"}, app=app)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "7"
    assert error_of(refused)["code"] == "not_ready"


async def test_version_features_and_config():
    assert (await get("/version")).json() == {"version": installed_version()}
    matrix = (await get("/features")).json()
    count = len(FEATURES)
    assert (len(matrix["features"]), len(matrix["pairs"])) == (count, count * (count - 1) // 2)
    app = echo_app(api_keys=parse_keys(["ann s3cret"], "test"))
    config = await get("/config", app, headers={"X-Api-Key": "s3cret"})
    assert config.json()["server"]["api_keys"] == 1
    assert config.json()["model"]["names"] == ["tiny", "also-tiny"]
    assert "s3cret" not in config.text
    assert "digest" not in config.text


async def test_every_operation_is_described_in_words():
    for path, methods in echo_app().openapi()["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description", "").endswith("."), f"{method} {path}"


async def test_docs_need_no_other_site():
    response = await get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "http://" not in response.text
    assert "https://" not in response.text
    assert "<script" not in response.text
    for part in ("POST /v1/chat/completions", "max_completion_tokens", "list of Message", "required"):
        assert part in response.text


async def test_docs_show_required_fields_first_and_real_defaults():
    fields = {"a": {"type": "integer", "default": None}, "b": {"type": "boolean", "default": True}, "c": {}}
    schemas = {"Body": {"properties": fields, "required": ["c"]}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
    paths = {"/x": {"post": {"description": "Does it.", "requestBody": body}}}
    page = docs_page({"info": {"title": "T", "version": "1"}, "paths": paths, "components": {"schemas": schemas}})
    rows = ["c<td>any<td>required", "a<td>integer<td>", "b<td>boolean<td>true"]
    assert "".join(f"<tr><td>{row}</tr>" for row in rows) in page


async def test_embeddings_are_refused_with_the_reason():
    response = await post({"input": "a"}, "/v1/embeddings")
    assert response.status_code == 404
    assert "embeddings are not offered" in error_of(response)["message"]


async def test_unknown_routes_and_methods():
    missing = await get("/v2/none")
    assert missing.status_code == 404
    assert "no such route" in error_of(missing)["message"]
    wrong = await get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"


async def test_request_ids():
    given = await post({"prompt": "a"}, headers={"X-Request-Id": "trace-7:a.b_c"})
    assert given.headers["x-request-id"] == "trace-7:a.b_c"
    assert given.json()["id"] == "cmpl-trace-7:a.b_c"
    for bad in ("", "a b", "a/b", "x" * 129, "ä".encode("latin-1")):
        response = await post({"prompt": "a"}, headers={"X-Request-Id": bad})
        assert len(response.headers["x-request-id"]) == 32
    for path in ("/health", "/nowhere"):
        assert "x-request-id" in (await get(path)).headers


async def test_an_id_of_an_open_request_is_made_unique():
    app = echo_app()
    app.state.context.lifecycle.open_ids.add("mine")
    response = await post({"prompt": "a"}, app=app, headers={"X-Request-Id": "mine"})
    assert response.status_code == 200
    assert response.headers["x-request-id"].startswith("mine-")


async def test_nothing_stays_open():
    app = echo_app()
    await post({"prompt": "a"}, app=app)
    await post({"prompt": ["a", "b"], "stream": True}, app=app)
    await post({"prompt": "a", "nonsense": 1}, app=app)
    lifecycle = app.state.context.lifecycle
    assert not lifecycle.open_ids
    assert not lifecycle.streams


class Broken(EchoEngine):
    def generate(self, request):
        raise ZeroDivisionError("secret detail")


async def test_a_defect_tells_no_details():
    app = echo_app(Broken())
    response = await post({"prompt": "a"}, app=app)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "ZeroDivisionError" in error_of(response)["message"]


async def test_a_defect_in_a_stream_ends_it_with_an_error():
    class Late(EchoEngine):
        async def generate(self, request):
            async for delta in super().generate(request):
                yield delta
                raise ZeroDivisionError("secret detail")

    app = echo_app(Late(byte_tokenizer().decode))
    response = await post({"prompt": "abc", "stream": True}, app=app)
    *_, last = events(response)
    assert last["error"]["type"] == "server_error"
    assert "secret" not in response.text
