"""The names, the two prefixes, and what a completion adds."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from slipstream.engine.outputs import CompletionStats
from slipstream.engine.protocol import EngineStats
from slipstream.metrics.serving import ServingMetrics

pytestmark = pytest.mark.fast

STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    num_steps=11,
    num_preemptions=1,
    num_prompt_tokens=100,
    num_output_tokens=40,
    num_cached_tokens=64,
    kv_blocks_total=10,
    kv_blocks_used=4,
    prefix_cache_queries=100,
    prefix_cache_hits=64,
    max_num_seqs=16,
    num_queued_tokens=300,
    num_shed=6,
    num_restarts=2,
    warm_up_time=0.5,
    step_time=1.5,
    forward_time=1.25,
    num_drafts=7,
    num_draft_tokens=20,
    num_accepted_tokens=9,
    accepted_per_position=(6, 3, 0),
    num_store_tokens=500,
    num_store_draft_tokens=8,
    num_store_accepted_tokens=5,
)


def scrape(metrics: ServingMetrics) -> dict[str, float]:
    """Sample name with its labels but model_name and engine -> value."""
    text = metrics.render()[0].decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(("vllm:", "slipstream:")):
                assert sample.labels["model_name"] == "tiny"
                assert sample.labels["engine"] == "0"
            labels = "".join(f"|{v}" for k, v in sample.labels.items() if k not in ("model_name", "engine"))
            found[sample.name + labels] = sample.value
    return found


def test_engine_statistics_come_under_vllms_names() -> None:
    found = scrape(ServingMetrics("tiny", lambda: STATS))
    for name, value in {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.4,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 64,
        "num_preemptions_total": 1,
        "prompt_tokens_total": 100,
        "spec_decode_num_drafts_total": 7,
        "spec_decode_num_draft_tokens_total": 20,
        "spec_decode_num_accepted_tokens_total": 9,
        "spec_decode_num_accepted_tokens_per_pos_total|0": 6,
        "spec_decode_num_accepted_tokens_per_pos_total|1": 3,
        "spec_decode_num_accepted_tokens_per_pos_total|2": 0,
        "prompt_tokens_cached_total": 64,
        "generation_tokens_total": 40,
    }.items():
        assert found[f"vllm:{name}"] == value, name
        assert found[f"slipstream:{name}"] == value, name
    for name, value in {
        "engine_steps_total": 11,
        "engine_step_seconds_total": 1.5,
        "engine_restarts_total": 2,
        "requests_shed_total": 6,
        "num_queued_tokens": 300,
        "engine_warm_up_seconds": 0.5,
        "max_num_seqs": 16,
        "speculation_store_tokens": 500,
        "speculation_store_draft_tokens_total": 8,
        "speculation_store_accepted_tokens_total": 5,
    }.items():
        assert found[f"slipstream:{name}"] == value
        assert f"vllm:{name}" not in found
    assert found["slipstream:engine_forward_seconds_total"] == 1.25
    assert found["process_resident_memory_bytes"] > 0


def test_a_completion_is_split_into_its_phases() -> None:
    metrics = ServingMetrics("tiny", lambda: STATS)
    metrics.completion(CompletionStats(7, 5, 4, 0, queue_time=0.25, ttft=1.0, tpot=0.5, e2e=3.0), "stop")
    found = scrape(metrics)
    for name, seconds in {
        "request_queue_time_seconds": 0.25,
        "request_prefill_time_seconds": 0.75,
        "request_decode_time_seconds": 2.0,
        "request_inference_time_seconds": 2.75,
        "request_time_per_output_token_seconds": 0.5,
        "request_prompt_tokens": 7,
        "request_generation_tokens": 5,
    }.items():
        assert found[f"vllm:{name}_sum"] == seconds, name
        assert found[f"slipstream:{name}_count"] == 1, name
    assert found["vllm:request_success_total|stop"] == 1


def test_a_completion_that_never_ran_has_no_phases() -> None:
    metrics = ServingMetrics("tiny", lambda: STATS)
    metrics.completion(CompletionStats(7, 0, 0, 0, queue_time=None, ttft=None, tpot=None, e2e=1.0), "abort")
    found = scrape(metrics)
    assert found["vllm:request_success_total|abort"] == 1
    assert found["vllm:request_prompt_tokens_count"] == 1
    for name in ("queue_time", "prefill_time", "decode_time", "inference_time", "time_per_output_token"):
        assert found[f"vllm:request_{name}_seconds_count"] == 0


def test_http_and_the_server_are_ours_alone() -> None:
    ready = [True]
    metrics = ServingMetrics("tiny", lambda: STATS, lambda: ready[0])
    metrics.http_answered("POST", "/v1/completions", 200, 0.2)
    metrics.http_answered("POST", "/v1/completions", 429, 0.001)
    metrics.backpressure_aborts.inc()
    metrics.rejected.inc("OverloadedError")
    found = scrape(metrics)
    assert found["slipstream:http_requests_total|POST|/v1/completions|200"] == 1
    assert found["slipstream:http_requests_total|POST|/v1/completions|429"] == 1
    assert found["slipstream:http_request_duration_seconds_count|POST|/v1/completions"] == 2
    assert found["slipstream:stream_backpressure_aborts_total"] == 1
    assert found["slipstream:requests_rejected_total|OverloadedError"] == 1
    assert not any(name.startswith("vllm:") and ("http" in name) for name in found)
    assert found["slipstream:engine_ready"] == 1
    ready[0] = False
    assert scrape(metrics)["slipstream:engine_ready"] == 0


def test_two_servers_count_apart() -> None:
    one, two = ServingMetrics("tiny", lambda: STATS), ServingMetrics("tiny", lambda: STATS)
    one.request_success.inc("stop")
    assert "vllm:request_success_total|stop" in scrape(one)
    assert "vllm:request_success_total|stop" not in scrape(two)


def test_openmetrics_is_given_to_who_asks() -> None:
    metrics = ServingMetrics("tiny", lambda: STATS)
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name: family.type for family in openmetrics.text_string_to_metric_families(body.decode())}
    assert families["vllm:prompt_tokens"] == "counter"
    assert families["vllm:time_to_first_token_seconds"] == "histogram"
    assert metrics.render("*/*")[1].startswith("text/plain")


def test_every_family_is_described_once() -> None:
    text = ServingMetrics("tiny", lambda: STATS).render()[0].decode()
    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helped) == len(set(helped))
    assert all(len(line.split()) > 3 for line in text.splitlines() if line.startswith("# HELP"))
