"""What a load test writes down. Times in seconds; JSON through msgspec."""

from __future__ import annotations

from typing import Literal

import msgspec

from slipstream.bench.stats import Distribution, Interval

FORMAT = "slipstream-bench-serve/1"
CountedBy = Literal["usage per chunk", "tokenizer", "usage at the end", "chunks"]


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured request. `started` counts from the start of the measured window; under an open loop it is when
    the request was due, and every latency counts from there. `gaps` are the times between chunks."""

    index: int
    started: float
    group: str = ""
    late: float = 0.0  # sent so long after it was due: the client's fault
    ttft: float | None = None
    e2e: float | None = None
    gaps: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()  # empty: not known chunk by chunk
    prompt_tokens: int | None = None  # by the server
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted_tokens: int | None = None  # by the client, where it can count: tokenizer or running usage
    server_tokens: int | None = None  # by the server's last usage
    asked_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None  # kind
    message: str | None = None

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after those of the first chunk."""
        first = self.chunk_tokens[0] if self.chunk_tokens else 1
        after = self.output_tokens - max(first, 1)
        return sum(self.gaps) / after if self.gaps and after > 0 else None


class Overhead(msgspec.Struct, frozen=True):
    """What the client itself cost."""

    cpu_share: float  # of one processor
    per_read: float  # mean time spent on a piece that arrived
    slowest_read: float
    lag_p50: float  # how late the event loop woke up
    lag_p99: float
    lag_max: float
    late_max: float  # how long after it was due a request was sent, at most


class TokenCheck(msgspec.Struct, frozen=True):
    """The server's token counts beside the client's."""

    counted_by: CountedBy
    server: int | None
    client: int | None
    requests_that_differ: int
    tokens_per_chunk: float


class LevelSummary(msgspec.Struct, frozen=True):
    requests: int
    succeeded: int
    errors: dict[str, int]
    seconds: float
    output_tokens_per_s: Interval | None
    requests_per_s: float  # answered within the window
    prompt_tokens_per_s: float | None
    cached_share: float | None  # of the prompt tokens
    latency: dict[str, Distribution]  # ttft, tpot, itl, e2e; those without samples are left out
    goodput: float | None  # requests/s, times the share of the measured ones that met every objective on their own
    meets_slo: bool | None
    short_answers: int  # fewer tokens than asked for
    tokens: TokenCheck
    overhead: Overhead


class Level(msgspec.Struct, frozen=True):
    """`value` is requests at once, requests/s, or the speed-up of a trace. `tokens_by_slice` are output tokens that
    arrived in each of equal parts of the window, `running_by_slice` the requests open at its end."""

    kind: Literal["concurrency", "rate", "trace"]
    value: float
    summary: LevelSummary
    tokens_by_slice: tuple[float, ...]
    running_by_slice: tuple[int, ...]
    records: tuple[RequestRecord, ...]


class Knee(msgspec.Struct, frozen=True):
    """`knee` and `limit` are values of levels' kind; None where the sweep shows none, and `why` says so."""

    knee: float | None
    limit: float | None
    rule: str
    why: str


class ServeResult(msgspec.Struct, frozen=True):
    format: str
    name: str
    date: str
    url: str
    api: str
    model: str
    version: str
    client: dict[str, str]
    workload: dict[str, str]
    settings: dict[str, str]
    slo: tuple[str, ...]
    levels: tuple[Level, ...]
    knee: Knee
    notes: tuple[str, ...]


def encode(result: ServeResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)
