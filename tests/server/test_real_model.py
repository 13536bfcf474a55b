"""A real model behind the server, in a process of its own, gives the tokens that `LLM` gives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from slipstream.engine.llm import LLM
from slipstream.engine.process.engine import ProcessEngine
from slipstream.sampling.params import SamplingParams
from tests.server.live import live
from tests.server.serving import served

pytestmark = [pytest.mark.model, pytest.mark.anyio]

PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time"]
MESSAGES = [{"role": "user", "content": "Name a river. <|im_end|>"}]


async def test_tokens_are_the_engines(smollm2_path: Path, tmp_path: Path):
    with LLM(str(smollm2_path), num_threads=1, cache_dir=tmp_path) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=12)
        seeded = SamplingParams(temperature=1, seed=7, max_tokens=12)
        expected = [each.outputs[0].text for each in llm.generate(PROMPTS, greedy)]
        expected += [each.outputs[0].text for each in llm.generate(PROMPTS, seeded)]

    engine = ProcessEngine.load(str(smollm2_path), cache_dir=tmp_path, num_threads=1)
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    model = served(tokenizer, vocab_size=engine.info.vocab_size, max_model_len=engine.info.max_model_len)
    async with live(engine, model=model) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:

        async def complete(**body: object) -> str:
            answer = await client.post("/v1/completions", json={"max_tokens": 12, **body})
            return str(answer.json()["choices"][0]["text"])

        found = await asyncio.gather(
            *(complete(prompt=prompt, temperature=0) for prompt in PROMPTS),
            *(complete(prompt=prompt, seed=7) for prompt in PROMPTS),
        )
        assert found == expected

        counted = (await client.post("/tokenize", json={"messages": MESSAGES})).json()
        control = [token for token in counted["tokens"] if tokenizer.is_special(token)]
        plain = (await client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})).json()
        assert control == [token for token in plain["tokens"] if tokenizer.is_special(token)]
