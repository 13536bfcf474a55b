"""The requests of the OpenAI API that a load test sends, and what has to be known about the server first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from slipstream.bench.connection import Client
from slipstream.bench.failure import FailedRequestError
from slipstream.bench.stream import StreamedAnswer, Usage, refusal
from slipstream.bench.words import Calibration
from slipstream.bench.workload import Item
from slipstream.errors import RequestError, UsageError

Api = Literal["completions", "chat"]
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_PROBE_WORDS = (16, 80)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this server is spoken to. `ignore_eos` and `running_usage` are extensions that some servers refuse."""

    api: Api
    model: str
    ignore_eos: bool = True
    running_usage: bool = True
    temperature: float = 0.0

    def body(self, item: Item, seed: int | None = None) -> bytes:
        options: dict[str, Any] = {"include_usage": True}
        if self.running_usage:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": item.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": options,
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if seed is not None and self.temperature > 0:
            body["seed"] = seed
        if self.api == "chat":
            text = item.prompt
            body["messages"] = [{"role": "user", "content": text}] if isinstance(text, str) else list(text)
        else:
            if not isinstance(item.prompt, str):
                raise UsageError("chats need --api chat.")
            body["prompt"] = item.prompt
        return msgspec.json.encode(body)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the first requests showed. `notes` say what the server does not offer."""

    dialect: Dialect
    calibration: Calibration
    notes: tuple[str, ...]


async def find_model(client: Client) -> str:
    """The one model that the server has. Raises FailedRequestError, or RequestError when there are none or several."""
    answer = await client.fetch("GET", "/v1/models")
    if answer.status != 200:
        raise refusal(answer.status, bytes(answer.data))
    try:
        names = [str(each["id"]) for each in msgspec.json.decode(answer.data)["data"]]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        where = client.endpoint.url("/v1/models")
        raise FailedRequestError("malformed", "this is not a list of models.", where=where) from error
    if len(names) != 1:
        shown = ", ".join(names[:10]) or "none"
        raise RequestError(f"the server has {len(names)} models ({shown}).", fix="Name one with --model.")
    return names[0]


async def ask(client: Client, dialect: Dialect, item: Item, *, keep_text: bool = False) -> StreamedAnswer:
    """One whole request. Raises FailedRequestError."""
    answer = StreamedAnswer(keep_text=keep_text)
    await client.send("POST", PATHS[dialect.api], dialect.body(item), answer)
    answer.check()
    return answer


async def probe(client: Client, dialect: Dialect, text: tuple[str, str]) -> Probe:
    """Send two prompts of 16 and 80 words: learns what the server takes, and how many tokens its prompts get.

    Raises FailedRequestError where even the plain request fails.
    """
    notes: list[str] = []
    first, dialect = await _first_answer(client, dialect, Item("probe", text[0], 2), notes)
    second = await ask(client, dialect, Item("probe", text[1], 2))
    if dialect.running_usage and not first.counts:
        notes.append("the server gives no running token counts (stream_options.continuous_usage_stats)")
    usages: tuple[Usage | None, Usage | None] = (first.usage, second.usage)
    calibration = Calibration()
    if usages[0] is None or usages[1] is None:
        notes.append("the server gives no usage: prompt lengths are in words, and tokens are counted by the client")
    else:
        try:
            points = [(words, usage.prompt_tokens) for words, usage in zip(_PROBE_WORDS, usages, strict=True) if usage]
            calibration = Calibration.fit(points[0], points[1])
        except ValueError:
            notes.append("the server's prompt token counts make no sense: prompt lengths are in words")
    return Probe(dialect, calibration, tuple(notes))


async def _first_answer(
    client: Client, dialect: Dialect, item: Item, notes: list[str]
) -> tuple[StreamedAnswer, Dialect]:
    """Tries the extensions, and without those that a 400 or 422 may be about."""
    trials = [dialect]
    if dialect.running_usage:
        trials.append(replace(dialect, running_usage=False))
    if dialect.ignore_eos:
        trials.append(replace(dialect, running_usage=False, ignore_eos=False))
    for trial in trials[:-1]:
        try:
            answer = await ask(client, trial, item)
        except FailedRequestError as failure:
            if failure.kind not in ("http 400", "http 422"):
                raise
            continue
        return answer, _noted(dialect, trial, notes)
    return await ask(client, trials[-1], item), _noted(dialect, trials[-1], notes)


def _noted(asked: Dialect, taken: Dialect, notes: list[str]) -> Dialect:
    if asked.running_usage and not taken.running_usage:
        notes.append("the server refuses stream_options.continuous_usage_stats")
    if asked.ignore_eos and not taken.ignore_eos:
        notes.append("the server refuses ignore_eos: answers end where the model ends them, so their lengths differ")
    return taken
