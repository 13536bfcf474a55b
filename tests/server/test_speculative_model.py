"""Tools with drafts and without, through the server, with a real model: the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from slipstream.engine.async_engine import AsyncEngine
from tests.server.live import in_thread
from tests.server.serving import served

pytestmark = pytest.mark.model

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
ASK: Any = [{"role": "user", "content": "What is the weather like in Paris, in Celsius? Paris, Paris, Paris!"}]


def test_tool_calls_are_the_same_with_drafts(smollm2_path: Path) -> None:
    found: dict[str, list[tuple[str, str, str]]] = {}
    drafted = {}
    for mode in ("off", "ngram"):
        engine = AsyncEngine.load(
            str(smollm2_path),
            num_threads=1,
            max_model_len=1024,
            speculative=mode,
            speculative_policy="cost" if mode == "off" else "fixed",
        )
        model = served(engine.tokenizer, vocab_size=engine.info.vocab_size, max_model_len=engine.info.max_model_len)
        with (
            in_thread(engine, model=model, tool_parser="hermes") as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            found[mode] = []
            for choice, temperature in (("required", 0.0), ("required", 0.7), ("auto", 0.0)):
                answer = client.chat.completions.create(
                    model="tiny",
                    messages=ASK,
                    tools=[TOOL],
                    tool_choice=choice,  # type: ignore[arg-type]
                    max_tokens=70,
                    temperature=temperature,
                    seed=4,
                )
                [each] = answer.choices
                calls = str([(c.function.name, c.function.arguments) for c in each.message.tool_calls or ()])  # type: ignore[union-attr]
                found[mode].append((calls, each.message.content or "", each.finish_reason))
            drafted[mode] = engine.stats().num_accepted_tokens
    assert found["ngram"] == found["off"]
    assert "get_weather" in found["off"][0][0]
    assert drafted["off"] == 0 < drafted["ngram"]
