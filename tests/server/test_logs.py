import io
import json
import logging

import pytest

from slipstream.server.logs import configure_logging
from tests.server.serving import echo_app, post

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def _loggers_as_before():
    loggers = [logging.getLogger(name) for name in ("slipstream", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.anyio
async def test_a_request_is_one_object():
    out = io.StringIO()
    configure_logging("json", stream=out)
    await post({"prompt": "a"}, headers={"X-Request-Id": "abc"})
    [line] = out.getvalue().splitlines()
    data = json.loads(line)
    assert {key: data[key] for key in ("level", "request_id", "method", "path", "status")} == {
        "level": "info",
        "request_id": "abc",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
    }
    assert "tenant" not in data


@pytest.mark.anyio
async def test_probes_are_not_logged_and_quiet_is_quiet():
    out = io.StringIO()
    configure_logging("text", stream=out)
    app = echo_app()
    for path in ("/health", "/ready"):
        await post({}, path, app=app)
    await post({"prompt": "a"}, app=app)
    lines = out.getvalue().splitlines()
    assert [line.split(" (")[0].split(" INFO ")[1] for line in lines] == [
        "POST /health 405",
        "POST /ready 405",
        "POST /v1/completions 200",
    ]
    out.truncate(0)
    configure_logging("text", stream=out, quiet=True)
    await post({"prompt": "a"}, app=app)
    assert not out.getvalue().strip("\0")


def test_a_client_cannot_forge_lines():
    out = io.StringIO()
    configure_logging("text", stream=out)
    logging.getLogger("slipstream.server").info("POST %s", "/x\nFORGED")
    assert len(out.getvalue().splitlines()) == 1


def test_what_a_client_sent_cannot_command_a_terminal():
    out = io.StringIO()
    configure_logging("text", stream=out)
    logging.getLogger("slipstream.server").info("GET %s", "/\x1b[2J\0\x85\u2028\u202e/Straße")
    assert out.getvalue().endswith("INFO GET /\\x1b[2J\\x00\\x85\\u2028\\u202e/Straße\n")


def test_tracebacks_are_kept():
    for form in ("text", "json"):
        out = io.StringIO()
        configure_logging(form, stream=out)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            logging.getLogger("slipstream.server").exception("oh")
        assert "ZeroDivisionError" in out.getvalue()
