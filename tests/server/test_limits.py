"""Bodies: their size, and the time that they take to arrive."""

import asyncio
import json

import pytest

from slipstream.errors import ConfigError
from slipstream.server.options import ServerOptions
from tests.server.serving import client_for, echo_app, error_of, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


async def test_a_stated_size_that_is_too_large():
    response = await post({"prompt": "x" * 200}, app=echo_app(max_body_bytes=100))
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert error_of(response)["code"] == "body_too_large"


async def test_a_size_that_shows_only_while_it_is_read():
    async def pieces():
        for _ in range(30):
            yield b"          "

    async with client_for(echo_app(max_body_bytes=100)) as client:
        response = await client.post("/v1/completions", content=pieces())
    assert response.status_code == 413
    assert response.headers["connection"] == "close"


async def test_the_largest_body_passes():
    body = json.dumps({"prompt": "abc"}).encode()
    assert (await post(body, app=echo_app(max_body_bytes=len(body)))).status_code == 200
    assert (await post(body, app=echo_app(max_body_bytes=len(body) - 1))).status_code == 413


async def test_a_body_that_does_not_arrive():
    async def pieces():
        yield b"{"
        await asyncio.sleep(5)
        yield b"}"

    async with client_for(echo_app(body_timeout=0.05)) as client:
        response = await client.post("/v1/completions", content=pieces())
    assert response.status_code == 408
    assert error_of(response)["code"] == "body_timeout"


async def test_an_answer_may_take_longer_than_the_body_might():
    app = echo_app(body_timeout=0.05)
    app.state.context.engine._inner._delay = 0.03
    assert (await post({"prompt": "abcdef"}, app=app)).status_code == 200


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"port": -1}, "port"),
        ({"port": 70000}, "port"),
        ({"drain_timeout": -1.0}, "drain_timeout"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"log_format": "xml"}, "log_format"),
        ({"tls_key": "key.pem"}, "tls_certificate"),
        ({"request_timeout": 0.0}, "request_timeout"),
    ],
)
def test_bad_options_are_named(values, part):
    with pytest.raises(ConfigError, match=part):
        ServerOptions(**values)
