"""`slipstream bench serve`: a load test of any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from slipstream.bench.api import Api
from slipstream.bench.levels import parse_concurrency, parse_rates
from slipstream.bench.record import Level, ServeResult, encode
from slipstream.bench.serve import ServeOptions, SweepInterrupted, WorkloadOptions, run_serve
from slipstream.bench.slo import parse_slo
from slipstream.bench.table import closing, level_notes, table
from slipstream.bench.workload import DEFAULT_LENGTHS
from slipstream.cli.bench_files import check_writable, write_result
from slipstream.cli.parameters import Option
from slipstream.cli.render import note
from slipstream.config.env import read_environment
from slipstream.errors import UsageError


def serve(
    url: Annotated[str, Option(metavar="URL", help="The server, as http://HOST:PORT.")],
    *,
    model: Annotated[str | None, Option(metavar="NAME", help="Its model; by default the only one it lists.")] = None,
    api: Annotated[
        str | None, Option(metavar="API", help="completions or chat; by default what the workload is.")
    ] = None,
    api_key_file: Annotated[Path | None, Option(metavar="FILE", help="File with the key to send.")] = None,
    workload: Annotated[
        str, Option(metavar="KIND", help="mixed, shared-prefix, a .jsonl file of chats, or a .csv file with a trace.")
    ] = "mixed",
    lengths: Annotated[
        str, Option(metavar="P:O,...", help="Of mixed: prompt and output tokens of each class.")
    ] = DEFAULT_LENGTHS,
    prefix_groups: Annotated[int, Option(help="Of shared-prefix: how many prefixes there are.")] = 8,
    prefix_tokens: Annotated[int, Option(help="Of shared-prefix: tokens that a group shares.")] = 512,
    max_tokens: Annotated[int, Option(help="Output tokens of chats that do not say.")] = 128,
    length_cap: Annotated[
        int | None, Option(help="Of a trace: most tokens of a request, prompt and output together.")
    ] = None,
    concurrency: Annotated[
        str | None, Option(metavar="N,...", help="Closed loop: requests at once, as 1,2,4..64 (the default).")
    ] = None,
    rate: Annotated[
        str | None, Option(metavar="R,...", help="Open loop: Poisson arrivals per second, as 0.5,1,2.")
    ] = None,
    speedup: Annotated[
        float | None, Option(help="Open loop: a trace's own times, so many times as fast (its default: 1).")
    ] = None,
    seconds: Annotated[float, Option(help="Length of a level, warm-up not counted.")] = 300.0,
    warmup: Annotated[float, Option(help="Seconds of load before each level is measured.")] = 10.0,
    requests: Annotated[int | None, Option(help="End a level after so many measured requests.")] = None,
    timeout: Annotated[float, Option(help="Seconds after which a request has failed.")] = 600.0,
    slo: Annotated[str | None, Option(metavar="TERMS", help="Objectives, as ttft_p99=0.5,tpot_p99=50ms.")] = None,
    seed: Annotated[int, Option(help="Of lengths, order and arrivals.")] = 0,
    salt: Annotated[
        str | None, Option(metavar="TEXT", help="Of the words; by default new in every run, so that no cache has them.")
    ] = None,
    ignore_eos: Annotated[bool, Option(help="Ask for answers of exactly the wanted length.")] = True,
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0,
    tokenizer: Annotated[
        str | None,
        Option(metavar="MODEL", help="Count tokens with this model's tokenizer instead of the server's word."),
    ] = None,
    name: Annotated[str | None, Option(metavar="TEXT", help="What the result is called in comparisons.")] = None,
    output: Annotated[Path | None, Option(metavar="FILE", help="Write everything as JSON.")] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a report with plots.")] = None,
    json_: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Load a server with a sweep of levels and report throughput, latency percentiles with intervals, and the knee.

    A level is measured for --seconds after a warm-up; load goes on until its last request has been answered.
    Failures are counted apart. With --slo also goodput, and the knee is where the objectives still hold. Ctrl-C keeps
    the levels that are finished.
    """
    for file in (output, html):
        check_writable(file)
    for what, value in (("--seconds", seconds), ("--timeout", timeout)):
        if not value > 0:
            raise UsageError("must be above 0.", where=what)
    if warmup < 0:
        raise UsageError("must be 0 or more.", where="--warmup")
    for what, number in (("--requests", requests), ("--prefix-groups", prefix_groups), ("--max-tokens", max_tokens)):
        if number is not None and number < 1:
            raise UsageError("must be at least 1.", where=what)
    if speedup is not None and not speedup > 0:
        raise UsageError("must be above 0.", where="--speedup")
    if concurrency is None and rate is None and speedup is None:
        concurrency, speedup = (None, 1.0) if workload.endswith(".csv") else ("1,2,4..64", None)
    options = ServeOptions(
        url=url,
        model=model,
        api=_api(api, workload),
        headers=_headers(api_key_file),
        workload=WorkloadOptions(
            name=workload,
            lengths=lengths,
            prefix_groups=prefix_groups,
            prefix_tokens=prefix_tokens,
            max_tokens=max_tokens,
            length_cap=length_cap,
            seed=seed,
            salt=secrets.token_hex(4) if salt is None else salt,
        ),
        concurrency=() if concurrency is None else parse_concurrency(concurrency),
        rates=() if rate is None else parse_rates(rate),
        speedup=speedup,
        seconds=seconds,
        warmup=warmup,
        max_requests=requests,
        timeout=timeout,
        slo=() if slo is None else parse_slo(slo),
        ignore_eos=ignore_eos,
        temperature=temperature,
        name=name or "",
    )
    count = None if tokenizer is None else _counter(tokenizer)
    sweep = run_serve(
        options,
        count_tokens=count,
        say=(lambda text: None) if quiet else lambda text: note(f"note: {text}"),
        on_level=(lambda level: None) if quiet or json_ else _show_level,
        progress=_progress(seconds) if not quiet and sys.stderr.isatty() else None,
    )
    try:
        result = asyncio.run(sweep)
    except SweepInterrupted as interrupted:
        _deliver(interrupted.result, output, html, json_)
        raise KeyboardInterrupt from None
    _deliver(result, output, html, json_)


def _deliver(result: ServeResult, output: Path | None, html: Path | None, json_: bool) -> None:
    data = encode(result)
    if output is not None:
        write_result(output, data)
    if html is not None:
        from slipstream.bench.html import page

        write_result(html, page(result).encode())
    if json_:
        print(data.decode())
        return
    for line in (*table(result.levels), *closing(result)):
        print(line)
    for file in (output, html):
        if file is not None:
            note(f"written to {file}")


def _api(api: str | None, workload: str) -> Api:
    chosen = api or ("chat" if workload.endswith(".jsonl") else "completions")
    if chosen == "chat":
        return "chat"
    if chosen == "completions":
        return "completions"
    raise UsageError(f"there is no API {chosen!r}.", where="--api", fix="Use completions or chat.")


def _headers(key_file: Path | None) -> dict[str, str]:
    if key_file is None:
        return {}
    try:
        key = key_file.read_text("ascii").strip()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(key_file)) from error
    except UnicodeDecodeError as error:
        raise UsageError("holds more than ASCII characters.", where=str(key_file)) from error
    if not key or not key.isprintable() or " " in key:
        raise UsageError("holds no key: one line without spaces.", where=str(key_file))
    return {"Authorization": f"Bearer {key}"}


def _counter(model: str) -> Callable[[str], int]:
    from slipstream.config.types import EngineOptions, ModelOptions
    from slipstream.engine.loading import inspect_model

    options = EngineOptions(model=ModelOptions(model=model))
    _, tokenizer = inspect_model(options, cache_dir=read_environment().cache_dir)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _show_level(level: Level) -> None:
    sys.stderr.write("\r\x1b[K" if sys.stderr.isatty() else "")
    for line in (*table([level]), *(f"  {each}" for each in level_notes(level))):
        note(line)


def _progress(seconds: float) -> Callable[[int, float], None]:
    def show(requests: int, elapsed: float) -> None:
        stage = "warm-up" if elapsed < 0 else f"{elapsed:.0f} of {seconds:.0f} s"
        sys.stderr.write(f"\r\x1b[K{stage}, {requests} requests")
        sys.stderr.flush()

    return show
