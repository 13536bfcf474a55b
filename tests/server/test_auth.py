import asyncio

import pytest

from slipstream.engine.echo import EchoEngine
from slipstream.errors import ConfigError
from slipstream.server.keys import parse_keys
from slipstream.server.options import ServerOptions
from tests.server.serving import byte_tokenizer, client_for, echo_app, error_of, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]

KEYS = parse_keys(["ann one", "bob two"], "test")
PUBLIC = {"/", "/health", "/ready", "/docs", "/openapi.json"}
BODY = {"prompt": "abc"}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def test_every_route_but_the_probes_and_the_page_needs_a_key():
    app = echo_app(api_keys=KEYS)
    paths = {getattr(route, "path", "") for route in app.routes} | set(app.openapi()["paths"])
    async with client_for(app) as client:
        for path in sorted(paths - {""}):
            for method in ("GET", "POST"):
                response = await client.request(method, path)
                if path in PUBLIC or path.startswith("/page/"):
                    assert response.status_code != 401, path
                else:
                    assert response.status_code == 401, path
                    assert response.headers["www-authenticate"] == "Bearer"
                    if path.startswith("/v1/messages"):
                        assert response.json()["error"]["type"] == "authentication_error"
                    else:
                        assert error_of(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_a_browser_can_open_the_docs(path):
    async with client_for(echo_app(api_keys=KEYS)) as client:
        response = await client.get(path)
    assert response.status_code == 200
    assert "/v1/chat/completions" in response.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (bearer("one"), 200),
        ({"Authorization": "bearer two"}, 200),
        ({"X-Api-Key": "two"}, 200),
        (bearer("three"), 401),
        (bearer(""), 401),
        ({"Authorization": "Basic one"}, 401),
        ({"Authorization": "one"}, 401),
        ({"Authorization": "Bearer öne".encode("latin-1")}, 401),
        ({}, 401),
    ],
)
async def test_keys(headers, status):
    assert (await post(BODY, app=echo_app(api_keys=KEYS), headers=headers)).status_code == status


async def test_the_key_is_checked_before_the_body():
    assert (await post(b"{", app=echo_app(api_keys=KEYS))).status_code == 401


class Recording(EchoEngine):
    def __init__(self):
        super().__init__(byte_tokenizer().decode)
        self.asked = []

    def generate(self, request):
        self.asked.append(request)
        return super().generate(request)


async def test_the_key_is_the_tenant_and_has_a_cache_of_its_own():
    engine = Recording()
    app = echo_app(engine, api_keys=KEYS)
    await post(BODY, app=app, headers=bearer("one"))
    await post(BODY, app=app, headers=bearer("two"))
    await post({**BODY, "cache_salt": "s"}, app=app, headers=bearer("two"))
    assert [each.tenant for each in engine.asked] == ["ann", "bob", "bob"]
    assert len({each.cache_salt for each in engine.asked}) == 3
    open_engine = Recording()
    await post(BODY, app=echo_app(open_engine))
    assert (open_engine.asked[0].tenant, open_engine.asked[0].cache_salt) == (None, None)


async def test_concurrency_of_a_key_counts_open_requests():
    app = echo_app(EchoEngine(byte_tokenizer().decode, delay=0.05), api_keys=KEYS, key_concurrency=1)
    first = asyncio.create_task(post(BODY, app=app, headers=bearer("one")))
    await asyncio.sleep(0.02)
    refused, other = await asyncio.gather(
        post(BODY, app=app, headers=bearer("one")), post(BODY, app=app, headers=bearer("two"))
    )
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert other.status_code == 200
    assert (await first).status_code == 200
    assert (await post(BODY, app=app, headers=bearer("one"))).status_code == 200


async def test_rate_of_a_key_and_reads_are_free():
    app = echo_app(api_keys=KEYS, key_requests_per_minute=1)
    assert (await post(BODY, app=app, headers=bearer("one"))).status_code == 200
    refused = await post(BODY, app=app, headers=bearer("one"))
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    async with client_for(app) as client:
        assert (await client.get("/v1/models", headers=bearer("one"))).status_code == 200


def test_limits_need_keys():
    with pytest.raises(ConfigError, match="need API keys"):
        ServerOptions(key_concurrency=1)


async def test_cors_is_off_by_default():
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with client_for(echo_app()) as client:
        response = await client.options("/v1/completions", headers=preflight)
        assert "access-control-allow-origin" not in response.headers
    async with client_for(echo_app(cors_origins=("https://a.example",), api_keys=KEYS)) as client:
        response = await client.options("/v1/completions", headers=preflight)
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        other = await client.options("/v1/completions", headers={**preflight, "Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_an_allowed_origin_may_use_every_method_that_routes_have(method: str) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": method}
    async with client_for(echo_app(cors_origins=("https://a.example",), api_keys=KEYS)) as client:
        response = await client.options("/v1/responses/resp_1", headers=asked)
    assert response.status_code == 200
    assert method in response.headers["access-control-allow-methods"]
