"""/metrics, /stats and /requests through the whole application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.engine.echo import EchoEngine
from slipstream.engine.timeline import ChunkTiming, CompletionTimeline, DecodeTiming, RequestTimeline
from slipstream.errors import EngineError
from slipstream.server.keys import ApiKey
from tests.server.serving import byte_tokenizer, client_for, echo_app

pytestmark = pytest.mark.fast

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6}


def run(work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]], app: Any = None) -> None:
    async def inside() -> None:
        async with client_for(app or echo_app()) as client:
            await work(client)

    asyncio.run(inside())


def test_metrics_know_what_was_answered() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        await client.post("/v1/chat/completions", json=HELLO)
        await client.post("/v1/completions", json={"prompt": ["a", "bb"], "max_tokens": 2, "n": 2})
        await client.post("/v1/completions", json={"prompt": "a", "max_tokens": -1})
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        found = {
            (sample.name, sample.labels.get("route"), sample.labels.get("status")): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
            if "le" not in sample.labels
        }
        assert found["slipstream:http_requests_total", "/v1/chat/completions", "200"] == 1
        assert found["slipstream:http_requests_total", "/v1/completions", "200"] == 1
        assert found["slipstream:http_requests_total", "/v1/completions", "400"] == 1
        assert found["vllm:time_to_first_token_seconds_count", None, None] == 3  # a request per prompt
        assert found["vllm:request_generation_tokens_count", None, None] == 5  # a completion each
        assert found["slipstream:request_stream_wait_seconds_count", None, None] == 3
        assert found["vllm:generation_tokens_total", None, None] == 6 + 1 + 1 + 2 + 2
        openmetrics = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")

    run(use)


def test_stats() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        stats = (await client.get("/stats")).json()
        assert stats["ready"] is True
        assert (stats["num_running"], stats["num_waiting"], stats["kv_usage"]) == (0, 0, 0.0)

    run(use)


def test_requests_latest_first() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for name in ("one", "two", "three"):
            answer = await client.post("/v1/chat/completions", json=HELLO, headers={"X-Request-Id": name})
            assert answer.headers["x-request-id"] == name
        listed = (await client.get("/requests", params={"limit": 2})).json()["requests"]
        assert [each["id"] for each in listed] == ["three", "two"]
        one = (await client.get("/requests/one")).json()
        assert (one["outcome"], one["output_tokens"], one["n"]) == ("length", 6, 1)
        assert one["cause"]["text"].endswith(".")
        assert sum(one["parts"].values()) == pytest.approx(one["seconds"])
        assert one["parts"]["server"] > 0

    run(use)


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "1.5", "٣", ""])
def test_a_bad_limit_is_refused(limit: str) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        response = await client.get("/requests", params={"limit": limit})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "limit"

    run(use)


def test_a_key_sees_its_own_requests_only() -> None:
    app = echo_app(api_keys=(ApiKey.of("one", "s1"), ApiKey.of("two", "s2")))

    async def use(client: httpx.AsyncClient) -> None:
        one, two = ({"Authorization": f"Bearer {secret}"} for secret in ("s1", "s2"))
        await client.post("/v1/chat/completions", json=HELLO, headers={**one, "X-Request-Id": "mine"})
        assert [each["id"] for each in (await client.get("/requests", headers=one)).json()["requests"]] == ["mine"]
        assert (await client.get("/requests", headers=two)).json()["requests"] == []
        assert (await client.get("/requests/mine", headers=one)).status_code == 200
        assert (await client.get("/requests/mine", headers=two)).status_code == 404
        for path in ("/requests", "/requests/mine", "/metrics", "/stats"):
            assert (await client.get(path)).status_code == 401

    run(use, app)


def test_two_keys_may_use_the_same_id() -> None:
    app = echo_app(api_keys=(ApiKey.of("one", "s1"), ApiKey.of("two", "s2")))

    async def use(client: httpx.AsyncClient) -> None:
        one, two = ({"Authorization": f"Bearer {secret}", "X-Request-Id": "same"} for secret in ("s1", "s2"))
        first = await client.post("/v1/completions", json={"prompt": "aaaa", "max_tokens": 4}, headers=one)
        second = await client.post("/v1/completions", json={"prompt": "b", "max_tokens": 2}, headers=two)
        assert first.headers["x-request-id"] == second.headers["x-request-id"] == "same"
        assert first.json()["id"] == "cmpl-same"
        for headers, tenant, tokens in ((one, "one", 4), (two, "two", 1)):
            seen = (await client.get("/requests/same", headers=headers)).json()
            assert (seen["id"], seen["prompt_tokens"], seen["output_tokens"]) == ("same", tokens, tokens)
            assert (seen["steps"]["request_id"], seen["steps"]["tenant"]) == ("same", tenant)
        log = app.state.observation.log
        assert log.get("two", "same").delivered > log.get("one", "same").delivered

    run(use, app)


class Told(EchoEngine):
    """Knows a timeline for every request, or is down."""

    down = False

    async def timeline(self, request_id: str) -> RequestTimeline | None:
        if self.down:
            raise EngineError("the engine is gone.")
        quick = CompletionTimeline(0, 10, 0, 1, 0.0, 0.001, 0.002)
        slow = CompletionTimeline(
            1, 10, 4, 3, 6.0, 7.0, 8.0, (ChunkTiming(6.0, 1.0, 6, 6, 1),), DecodeTiming(2, 1.0, 0, 0.0, 0.5, 1.0)
        )
        return RequestTimeline(request_id, 0.0, None, 0, None, (quick, slow))


def test_the_engines_timeline_decides_and_is_shown() -> None:
    engine = Told(byte_tokenizer().decode)

    async def use(client: httpx.AsyncClient) -> None:
        await client.post("/v1/chat/completions", json=HELLO, headers={"X-Request-Id": "one"})
        one = (await client.get("/requests/one")).json()
        assert (one["cause"]["kind"], one["cached_tokens"]) == ("queue", 4)
        assert one["parts"]["queue"] == 6.0
        assert [each["index"] for each in one["steps"]["completions"]] == [0, 1]
        assert (await client.get("/requests")).json()["requests"][0]["steps"] is None
        engine.down = True
        one = (await client.get("/requests/one")).json()
        assert one["steps"] is None
        assert one["cause"]["kind"] != "queue"

    run(use, echo_app(engine))


def test_unknown_requests() -> None:
    async def use(client: httpx.AsyncClient) -> None:
        response = await client.get("/requests/nobody")
        assert response.status_code == 404
        assert "no request 'nobody' is known" in response.json()["error"]["message"]

    run(use)
