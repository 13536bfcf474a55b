"""`slipstream bench`: measuring servers and models. Each verb is imported when it is used."""

from __future__ import annotations

from slipstream.cli.verbs import Verb

VERBS = (
    Verb("serve", "slipstream.cli.bench_serve", "serve", "Load-test an OpenAI-compatible server."),
    Verb("compare", "slipstream.cli.bench_compare", "compare", "Compare two results: better, worse or within noise."),
    Verb("throughput", "slipstream.cli.bench_offline", "throughput", "Tokens per second of a model, many requests."),
    Verb("latency", "slipstream.cli.bench_offline", "latency", "Time to first token and per token of a model."),
    Verb("micro", "slipstream.cli.bench_micro", "micro", "Single steps by operation, against the machine's ceilings."),
)
