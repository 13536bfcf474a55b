"""OpenTelemetry spans of finished requests: queue, prefill, decode, stream, below one span per request.

They are made when a request is over, from instants that were noted anyway, so that a token costs nothing. Attributes
follow the GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slipstream.errors import ConfigError
from slipstream.server.observe.record import RequestRecord
from slipstream.version import installed_version

if TYPE_CHECKING:  # an extra
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

NANOSECONDS = 1_000_000_000


class Tracing:
    """Makes spans through `provider`, which it owns: `close` sends what is left."""

    def __init__(self, provider: TracerProvider, model_name: str) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._model_name = model_name
        self._tracer = provider.get_tracer("slipstream", installed_version())
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def record(self, record: RequestRecord, traceparent: str | None) -> None:
        """Spans of a request whose answer is over, below the caller's span if it named one."""
        started = record.arrival if record.received is None else record.received
        ended = record.elapsed_until
        if ended is None:
            return
        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        root = self._tracer.start_span(
            "llm_request",
            parent,
            kind=self._trace.SpanKind.SERVER,
            attributes=self._attributes(record),
            start_time=_unix(record, started),
        )
        if record.outcome in ("error", "refused"):
            root.set_status(self._trace.Status(self._trace.StatusCode.ERROR, record.error))
        below = self._trace.set_span_in_context(root)
        for name, start, end in phases(record):
            span = self._tracer.start_span(name, below, start_time=_unix(record, start))
            span.end(_unix(record, end))
        root.end(_unix(record, ended))

    def close(self) -> None:
        """Send what is left and stop; may wait for the collector as long as the exporter's time-out."""
        self._provider.shutdown()

    def _attributes(self, record: RequestRecord) -> dict[str, AttributeValue]:
        last = max(record.completions, key=lambda each: each.e2e or 0.0, default=None)
        given: dict[str, AttributeValue | None] = {
            "gen_ai.request.id": record.request_id,
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.request.n": record.n,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.response.finish_reasons": (record.outcome,),
            "slipstream.cached_tokens": last.num_cached_tokens if last else None,
            "slipstream.preemptions": last.num_preemptions if last else None,
            "slipstream.stream_wait_seconds": record.stream_wait,
        }
        return {name: value for name, value in given.items() if value is not None}


def phases(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) on the record's clock, each beginning where the one before ends; what is unknown is left out.

    The engine tells the queue's end; first and last token are when the server had them. "stream" is what came after.
    """
    waits = [each.queue_time for each in record.completions if each.queue_time is not None]
    until = record.elapsed_until
    if until is None:
        return
    at = record.arrival
    if waits:
        first_step = min(at + min(waits), until)
        yield "queue", at, first_step
        at = first_step
    if record.first_token is not None and record.last_token is not None:
        first = max(record.first_token, at)
        yield "prefill", at, first
        at = max(record.last_token, first)
        yield "decode", first, at
    if record.delivered is not None and record.delivered > at:
        yield "stream", at, record.delivered


def make_tracing(endpoint: str, model_name: str, *, exporter: Any = None) -> Tracing:
    """Spans go to an OTLP collector over HTTP, `endpoint` being its URL ("http://localhost:4318"; with a path it is
    taken as it is, else /v1/traces is added). `exporter` takes the place of OTLP.

    Raises ConfigError if the URL is none or the packages of the extra are not there.
    """
    where = "otel_endpoint"
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"must be an http or https URL, got {endpoint!r}.", where=where)
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint if url.path.strip("/") else endpoint.rstrip("/") + "/v1/traces")
    except ImportError as error:
        raise ConfigError(
            f"tracing was asked for, but a package is missing ({error.name}).",
            where=where,
            fix="Install the extra: pip install 'slipstream-llm[otel]'.",
        ) from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": "slipstream", "service.version": installed_version()})
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, model_name)


def _unix(record: RequestRecord, instant: float) -> int:
    return int((record.arrived_at + instant - record.arrival) * NANOSECONDS)
