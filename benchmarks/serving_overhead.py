"""What HTTP and the hop to the engine's process cost, against the same engine inside this process.

`python -m benchmarks.serving MODEL.gguf --overhead [--rounds 8]`. Both sides have the same settings, take turns, and
answer the same requests: greedy, of exactly the asked length.

* HTTP: `slipstream serve` as it is run, its engine in a process of its own. The client of the load test sends the
  prompt as text and reads the stream; a moment is when bytes come in.
* In-process: `AsyncEngine` in the client's process. It gets the prompt's token ids ready-made, so that what the server
  does to a text is overhead too; a moment is when a delta reaches the coroutine that asked.

Throughput: --concurrency streams begin at once, each PROMPT tokens and OUTPUT more; output tokens over the time from
the first request sent to the last token. A round has one block of each, in changing order. Overhead is 1 minus the
ratio of HTTP to in-process within a round: mean over the rounds with Student's interval. The client shares the
processors with the server, so what it takes of them more than the reader in-process does (the processor time of the
thread that reads, over the block's time on all processors) is part of that; it is shown, and what is left without it is
what HTTP and the hop cost. Aim: 5 % at most.

TTFT: one request at a time of SHORT tokens, from sending to the first token, each prompt once either way in changing
order. Overhead is HTTP less in-process for the same prompt: median over the pairs, and its interval by a bootstrap.
Aim: 1.5 ms at most.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from typing import Any, Protocol

import numpy as np

from benchmarks.peers import note
from benchmarks.servers import SERVERS, Server, Setup, started
from slipstream.bench.api import Dialect, ask, find_model
from slipstream.bench.connection import Client
from slipstream.bench.endpoint import Endpoint
from slipstream.bench.stats import t_interval
from slipstream.bench.words import Calibration
from slipstream.bench.workload import Item, Source
from slipstream.config.types import EngineOptions
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.protocol import GenerationRequest
from slipstream.sampling.params import SamplingParams

PROMPT, OUTPUT = 128, 128  # tokens of the throughput's requests
SHORT, FEW = 32, 4  # tokens of the prompts and answers of TTFT's
PAIRS = 25  # of TTFT per round
THROUGHPUT_AIM, TTFT_AIM = 0.05, 1.5e-3
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request, on the client's clock."""

    sent: float
    first: float
    last: float
    tokens: int
    text: str
    prompt_tokens: int


class Side(Protocol):
    async def answer(self, name: str, prompt: Prompt, tokens: int) -> Answer: ...


class HttpSide:
    def __init__(self, client: Client, dialect: Dialect) -> None:
        self._client = client
        self._dialect = dialect

    async def answer(self, name: str, prompt: Prompt, tokens: int) -> Answer:
        sent = perf_counter()
        found = await ask(self._client, self._dialect, Item(name, prompt.text, tokens), keep_text=True)
        assert found.usage is not None
        count = found.usage.completion_tokens or 0
        return Answer(sent, found.times[0], found.times[-1], count, "".join(found.text), found.usage.prompt_tokens)


class EngineSide:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def answer(self, name: str, prompt: Prompt, tokens: int) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        times, texts, count = [], [], 0
        sent = perf_counter()
        async for delta in self._engine.generate(GenerationRequest(name, prompt.ids, params)):
            times.append(perf_counter())
            texts.append(delta.text)
            count += len(delta.token_ids)
        return Answer(sent, times[0], times[-1], count, "".join(texts), len(prompt.ids))


Draw = Callable[[str, int], Prompt]


@dataclass(frozen=True, slots=True)
class Block:
    """The streams of one side in one round."""

    tokens_per_s: float
    tpot: float  # median, seconds
    texts: tuple[str, ...]
    reader: float = 0.0  # share of all processors that the thread took which asks and reads


async def block(side: Side, name: str, prompts: Sequence[Prompt], tokens: int = OUTPUT) -> Block:
    """Raises RuntimeError for a prompt or an answer of another length than asked."""
    before = thread_time()
    answers = await asyncio.gather(
        *(side.answer(f"{name}-{index}", prompt, tokens) for index, prompt in enumerate(prompts))
    )
    read = thread_time() - before
    for prompt, answer in zip(prompts, answers, strict=True):
        _check(prompt, answer, tokens)
    seconds = max(each.last for each in answers) - min(each.sent for each in answers)
    return Block(
        sum(each.tokens for each in answers) / seconds,
        statistics.median((each.last - each.first) / (each.tokens - 1) for each in answers),
        tuple(each.text for each in answers),
        read / (seconds * len(os.sched_getaffinity(0))),
    )


async def first_token(side: Side, name: str, prompt: Prompt) -> float:
    """Seconds to it, of one request. Raises as `block`."""
    answer = await side.answer(name, prompt, FEW)
    _check(prompt, answer, FEW)
    return answer.first - answer.sent


def _check(prompt: Prompt, answer: Answer, tokens: int) -> None:
    if (answer.prompt_tokens, answer.tokens) != (len(prompt.ids), tokens):
        raise RuntimeError(
            f"{answer.prompt_tokens} and {answer.tokens} tokens instead of {len(prompt.ids)} and {tokens}"
        )


def summarise(blocks: Sequence[tuple[Block, Block]], pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """From (HTTP, in-process) blocks and TTFTs."""
    lost = t_interval([1 - http.tokens_per_s / inside.tokens_per_s for http, inside in blocks])
    slower = t_interval([http.tpot / inside.tpot - 1 for http, inside in blocks])
    assert lost is not None
    assert slower is not None
    client = statistics.mean(http.reader - inside.reader for http, inside in blocks)
    differences = np.asarray([http - inside for http, inside in pairs])
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(differences, (RESAMPLES, len(differences))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    added = float(np.median(differences))
    return {
        "throughput": {
            "http_tokens_per_s": statistics.median(http.tokens_per_s for http, _ in blocks),
            "inside_tokens_per_s": statistics.median(inside.tokens_per_s for _, inside in blocks),
            "by_round": [[http.tokens_per_s, inside.tokens_per_s] for http, inside in blocks],
            "overhead": lost.value,
            "interval": [lost.low, lost.high],
            "client": client,
            "without_client": lost.value - client,
            "tpot_overhead": slower.value,
            "tpot_interval": [slower.low, slower.high],
            "different_answers": sum(
                a != b for http, inside in blocks for a, b in zip(http.texts, inside.texts, strict=True)
            ),
            "at_most": THROUGHPUT_AIM,
            "met": lost.value - client <= THROUGHPUT_AIM,
        },
        "ttft": {
            "http": statistics.median(http for http, _ in pairs),
            "inside": statistics.median(inside for _, inside in pairs),
            "overhead": added,
            "interval": [float(low), float(high)],
            "pairs": len(pairs),
            "at_most": TTFT_AIM,
            "met": added <= TTFT_AIM,
        },
    }


async def measure(http: Side, inside: Side, draw: Draw, concurrency: int, rounds: int) -> dict[str, Any]:
    """`draw` makes the prompt of a name with about so many tokens. The first round warms up and is dropped."""
    blocks, pairs = [], []
    for number in range(rounds + 1):
        prompts = [draw(f"{number} {index}", PROMPT) for index in range(concurrency)]
        sides = (http, inside) if number % 2 else (inside, http)
        found = {side: await block(side, f"round-{number}", prompts) for side in sides}
        times = []
        for index in range(PAIRS):
            prompt = draw(f"{number} short {index}", SHORT)
            order = (http, inside) if index % 2 else (inside, http)
            ttft = {side: await first_token(side, f"pair-{number}-{index}", prompt) for side in order}
            times.append((ttft[http], ttft[inside]))
        if number:
            blocks.append((found[http], found[inside]))
            pairs += times
            note(
                f"round {number}: HTTP {found[http].tokens_per_s:.1f}, "
                f"in-process {found[inside].tokens_per_s:.1f} tokens/s"
            )
    return summarise(blocks, pairs)


async def _measure(server: Server, engine: AsyncEngine, setup: Setup, rounds: int) -> dict[str, Any]:
    client = Client(Endpoint.parse(server.url), {})
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    words = (16, 80)
    source = Source(0, "overhead")
    points = [(count, len(tokenizer.encode(source.text(f"probe {count}", count)))) for count in words]
    source = replace(source, calibration=Calibration.fit(points[0], points[1]))

    def draw(name: str, tokens: int) -> Prompt:
        text = source.text(name, tokens)
        return Prompt(text, tuple(tokenizer.encode(text)))

    try:
        http = HttpSide(client, Dialect("completions", await find_model(client)))
        return await measure(http, EngineSide(engine), draw, setup.concurrency, rounds)
    finally:
        client.close()
        await engine.close()


def run(setup: Setup, rounds: int) -> dict[str, Any]:
    """Starts the server and the engine; both have the same settings."""
    own = [spec for spec in SERVERS if spec.name == "slipstream"]
    with started(own, setup) as (server,):
        options = EngineOptions.from_flat(
            model=str(setup.model),
            num_threads=setup.threads,
            max_num_seqs=setup.concurrency,
            max_model_len=setup.max_tokens,
            enable_prefix_caching=False,
        )
        engine = AsyncEngine.load(options)
        found = asyncio.run(_measure(server, engine, setup, rounds))
        return {
            "model": setup.model.name,
            "threads": setup.threads,
            "concurrency": setup.concurrency,
            "rounds": rounds,
            "version": server.version(),
            **found,
        }


def verdicts(result: dict[str, Any]) -> list[str]:
    rate, ttft = result["throughput"], result["ttft"]
    low, high = rate["interval"]
    tpot_low, tpot_high = rate["tpot_interval"]
    return [
        f"{result['concurrency']} streams: {rate['http_tokens_per_s']:.1f} tokens/s over HTTP, "
        f"{rate['inside_tokens_per_s']:.1f} in-process (medians); overhead {rate['overhead']:.1%} "
        f"[{low:.1%}, {high:.1%}], {rate['client']:.1%} of it the client's, {rate['without_client']:.1%} without it; "
        f"aim {rate['at_most']:.0%} at most: {'met' if rate['met'] else 'MISSED'}",
        f"time per output token: {rate['tpot_overhead']:+.1%} [{tpot_low:+.1%}, {tpot_high:+.1%}]; "
        f"{rate['different_answers']} answers differ",
        f"TTFT of one request: {1e3 * ttft['http']:.2f} ms over HTTP, {1e3 * ttft['inside']:.2f} in-process; overhead "
        f"{1e3 * ttft['overhead']:.2f} ms [{1e3 * ttft['interval'][0]:.2f}, {1e3 * ttft['interval'][1]:.2f}] over "
        f"{ttft['pairs']} pairs; aim {1e3 * ttft['at_most']:.1f} at most: {'met' if ttft['met'] else 'MISSED'}",
    ]
