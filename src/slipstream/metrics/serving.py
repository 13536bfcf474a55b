"""What a server counts and how it is called. Names are vLLM's where the meaning is the same (`vllm:...`), and every
number is exported as `slipstream:...` too; what vLLM does not have, or means otherwise, only as the latter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slipstream.metrics.instruments import OWN, Counter, Histogram, Reading

# Seconds. They contain vLLM's bounds and go below, because a small model on a good machine does.
TTFT_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
TOKEN_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
REQUEST_BOUNDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8),
    *(1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
LENGTH_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class EngineNumbers(Protocol):
    """What is read of an engine's statistics; `engine.protocol.EngineStats` has it."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def prefix_cache_queries(self) -> int: ...
    @property
    def prefix_cache_hits(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def num_queued_tokens(self) -> int: ...
    @property
    def num_shed(self) -> int: ...
    @property
    def num_restarts(self) -> int: ...
    @property
    def warm_up_time(self) -> float: ...
    @property
    def step_time(self) -> float: ...
    @property
    def forward_time(self) -> float: ...
    @property
    def num_drafts(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_tokens(self) -> int: ...
    @property
    def accepted_per_position(self) -> Sequence[int]: ...
    @property
    def time_saved(self) -> float: ...
    @property
    def speculation_warning(self) -> str: ...
    @property
    def num_store_tokens(self) -> int: ...
    @property
    def num_store_draft_tokens(self) -> int: ...
    @property
    def num_store_accepted_tokens(self) -> int: ...


class CompletionNumbers(Protocol):
    """What is read of a finished completion, in seconds; `engine.outputs.CompletionStats` has it."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def queue_time(self) -> float | None: ...
    @property
    def ttft(self) -> float | None: ...
    @property
    def tpot(self) -> float | None: ...
    @property
    def e2e(self) -> float | None: ...


class ServingMetrics(Collector):
    """The numbers of one server, in a registry of its own. To be fed and rendered on one event loop.

    `stats` is asked once per rendering; its counters may fall back to zero when the engine restarts, which
    Prometheus' `rate` expects of counters.
    """

    def __init__(self, model_name: str, stats: Callable[[], EngineNumbers], ready: Callable[[], bool] = lambda: True):
        self._common = {"model_name": model_name, "engine": "0"}
        self._stats = stats
        self._ready = ready
        self.request_success = Counter("request_success", "Completions that ended, by reason.", ["finished_reason"])
        self.time_to_first_token = Histogram(
            "time_to_first_token_seconds", "From the arrival of a request to its first token.", TTFT_BOUNDS
        )
        self.inter_token_latency = Histogram(
            "inter_token_latency_seconds", "Between one delivery of tokens of a completion and the next.", TOKEN_BOUNDS
        )
        self.time_per_output_token = Histogram(
            "request_time_per_output_token_seconds", "Mean per output token after the first.", TOKEN_BOUNDS
        )
        self.e2e_latency = Histogram("e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_BOUNDS)
        self.queue_time = Histogram("request_queue_time_seconds", "From arrival to the first step.", REQUEST_BOUNDS)
        self.prefill_time = Histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", REQUEST_BOUNDS
        )
        self.decode_time = Histogram("request_decode_time_seconds", "From the first to the last token.", REQUEST_BOUNDS)
        self.inference_time = Histogram(
            "request_inference_time_seconds", "From the first step to the last token.", REQUEST_BOUNDS
        )
        self.prompt_tokens = Histogram("request_prompt_tokens", "Tokens of a prompt.", LENGTH_BOUNDS)
        self.generation_tokens = Histogram("request_generation_tokens", "Tokens of a completion.", LENGTH_BOUNDS)
        self.params_n = Histogram("request_params_n", "The n asked for.", (1, 2, 5, 10, 20))
        self.params_max_tokens = Histogram("request_params_max_tokens", "The max_tokens asked for.", LENGTH_BOUNDS)
        self.stream_wait = Histogram(
            "request_stream_wait_seconds",
            "Time in which an answer waited for its reader, per request.",
            REQUEST_BOUNDS,
            prefixes=OWN,
        )
        self.http_requests = Counter(
            "http_requests", "HTTP requests answered.", ["method", "route", "status"], prefixes=OWN
        )
        self.http_duration = Histogram(
            "http_request_duration_seconds",
            "From the first byte in to the last byte out.",
            REQUEST_BOUNDS,
            ["method", "route"],
            prefixes=OWN,
        )
        self.rejected = Counter("requests_rejected", "Requests refused, by kind of error.", ["error"], prefixes=OWN)
        self.backpressure_aborts = Counter(
            "stream_backpressure_aborts", "Requests ended because their reader was too slow.", prefixes=OWN
        )
        self._fed = [each for each in vars(self).values() if isinstance(each, Counter | Histogram)]
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def completion(self, numbers: CompletionNumbers, reason: str) -> None:
        """Count one completion that ended; times that never came (it was aborted in the queue) are left out."""
        self.request_success.inc(reason)
        self.prompt_tokens.observe(numbers.num_prompt_tokens)
        self.generation_tokens.observe(numbers.num_output_tokens)
        queue, ttft, e2e = numbers.queue_time, numbers.ttft, numbers.e2e
        if queue is not None:
            self.queue_time.observe(queue)
            if ttft is not None:
                self.prefill_time.observe(ttft - queue)
            if e2e is not None:
                self.inference_time.observe(e2e - queue)
        if ttft is not None and e2e is not None:
            self.decode_time.observe(e2e - ttft)
        if numbers.tpot is not None:
            self.time_per_output_token.observe(numbers.tpot)

    def http_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` must be the template of the route, never the path as sent: each value is kept for ever."""
        self.http_requests.inc(method, route, str(status))
        self.http_duration.observe(seconds, method, route)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: Prometheus text, or OpenMetrics if `accept` (the header) asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for each in (*self._readings(stats), _accepted_per_position(stats), *self._fed):
            yield from each.families(self._common)

    def describe(self) -> Iterable[Metric]:
        """Nothing to compare with: the registry is this server's own."""
        return []

    def _readings(self, stats: EngineNumbers) -> Iterator[Reading]:
        for name, text, gauge in (
            ("num_requests_running", "Requests in the running batch.", stats.num_running),
            ("num_requests_waiting", "Requests that wait for their turn.", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks owned by requests, 0 to 1.", stats.kv_usage),
        ):
            yield Reading(name, text, gauge)
        for name, text, total in (
            ("prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_cache_queries),
            ("prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits),
            ("num_preemptions", "Requests sent back to the queue because KV blocks ran out.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens taken in, cached ones included.", stats.num_prompt_tokens),
            ("prompt_tokens_cached", "Prompt tokens whose KV was there already.", stats.num_cached_tokens),
            ("generation_tokens", "Tokens generated.", stats.num_output_tokens),
            ("spec_decode_num_drafts", "Drafts verified.", stats.num_drafts),
            ("spec_decode_num_draft_tokens", "Drafted tokens verified.", stats.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Drafted tokens that became output.", stats.num_accepted_tokens),
        ):
            yield Reading(name, text, total, counter=True)
        for name, text, seconds in (
            ("engine_restarts", "Starts of the engine after the first.", float(stats.num_restarts)),
            ("requests_shed", "Requests whose deadline could not be met.", float(stats.num_shed)),
            ("engine_steps", "Steps of the engine.", float(stats.num_steps)),
            ("engine_step_seconds", "Time in steps.", stats.step_time),
            ("engine_forward_seconds", "Time in steps inside the model.", stats.forward_time),
            (
                "speculation_store_draft_tokens",
                "Drafted tokens from recent answers verified.",
                float(stats.num_store_draft_tokens),
            ),
            (
                "speculation_store_accepted_tokens",
                "Drafted tokens from recent answers that became output.",
                float(stats.num_store_accepted_tokens),
            ),
        ):
            yield Reading(name, text, seconds, counter=True, prefixes=OWN)
        for name, text, now in (
            ("max_num_seqs", "Requests that may run at once, now.", float(stats.max_num_seqs)),
            ("num_queued_tokens", "Prompt tokens of the requests that wait.", float(stats.num_queued_tokens)),
            ("engine_ready", "1 while the engine takes requests.", float(self._ready())),
            ("speculation_saved_seconds", "Time of requests that drafts saved, estimated; may fall.", stats.time_saved),
            (
                "speculation_useless",
                "1 once drafts have proved to save no time.",
                float(bool(stats.speculation_warning)),
            ),
            ("speculation_store_tokens", "Tokens of recent answers held to draft from.", float(stats.num_store_tokens)),
            ("engine_warm_up_seconds", "What warming up took before the engine was ready.", stats.warm_up_time),
        ):
            yield Reading(name, text, now, prefixes=OWN)


def _accepted_per_position(stats: EngineNumbers) -> Counter:
    counter = Counter(
        "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens that became output, by position.", ["position"]
    )
    for position, number in enumerate(stats.accepted_per_position):
        counter.inc(str(position), by=number)
    return counter
