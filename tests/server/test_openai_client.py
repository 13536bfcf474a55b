"""OpenAI's own client, plain and asynchronous, drives every option, over a tiny model and the real engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from slipstream.server.keys import parse_keys
from tests.server.live import in_thread
from tests.server.serving import served

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river."}]
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    engine = AsyncEngine.load(str(tiny_folder), num_threads=1, weight_cache=False)
    model = served(engine.tokenizer, vocab_size=engine.info.vocab_size, max_model_len=engine.info.max_model_len)
    with in_thread(engine, model=model, api_keys=parse_keys(["ann s3cret"], "test")) as address:
        yield f"{address}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="s3cret", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected(tiny_folder: Path):
    """What the engine itself answers: text and tokens of a prompt under parameters."""
    with LLM(str(tiny_folder), num_threads=1, weight_cache=False) as llm:

        def answer(prompt, **params):
            [output] = llm.generate([prompt], SamplingParams(**params))
            return output

        answer.chat = llm.encode_chat
        answer.decode = llm.tokenizer.decode
        yield answer


def test_completions_are_the_engines(client, expected):
    answer = client.completions.create(prompt="The sky", **GREEDY)
    own = expected("The sky", temperature=0, max_tokens=8, ignore_eos=True)
    assert answer.choices[0].text == own.outputs[0].text
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_is_the_whole_answer_in_pieces(client):
    whole = client.completions.create(prompt="The sky", **GREEDY)
    chunks = list(
        client.completions.create(prompt="The sky", stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_chat(client, expected):
    answer = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    own = expected(expected.chat(MESSAGES), temperature=0, max_tokens=8, ignore_eos=True)
    assert answer.choices[0].message.content == own.outputs[0].text
    assert answer.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == own.outputs[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_clients_own_stream_helper(client):
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message.content
    with client.chat.completions.stream(messages=MESSAGES, stop=whole[3:5], **GREEDY) as stream:
        content = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == content == whole[: whole.index(whole[3:5])]


def test_seeds(client):
    asked = {**GREEDY, "temperature": 1.0, "prompt": "Once"}
    texts = [client.completions.create(seed=seed, **asked).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_n_choices_of_one_prompt(client):
    answer = client.completions.create(prompt="Once", **{**GREEDY, "temperature": 1.0, "n": 3, "seed": 5})
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == len("Once")


def test_stop(client):
    text = client.completions.create(prompt="The sky", **GREEDY).choices[0].text
    stop = text[2:4]
    answer = client.completions.create(prompt="The sky", stop=[stop, "never seen"], **GREEDY)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    streamed = client.completions.create(prompt="The sky", stop=stop, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text[: text.index(stop)]


def test_logit_bias_decides(client):
    answer = client.completions.create(prompt="x", logit_bias={"65": 100}, **GREEDY)
    [token] = {answer.choices[0].text[i] for i in range(8)}
    assert answer.choices[0].text == token * 8


def test_penalties_change_the_text(client):
    plain = client.completions.create(prompt="aaaa", **GREEDY).choices[0].text
    biased = client.completions.create(prompt="aaaa", frequency_penalty=2, presence_penalty=2, **GREEDY)
    assert biased.choices[0].text != plain


def test_further_parameters_of_vllm(client):
    extra = {
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "ignore_eos": True,
        "stop_token_ids": [1],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "priority": 1,
        "cache_salt": "mine",
        "timings": True,
        "timeout": 30,
    }
    answer = client.completions.create(model="tiny", prompt="x", max_tokens=5, top_p=0.9, user="me", extra_body=extra)
    assert answer.timings["e2e_ms"] >= answer.timings["ttft_ms"] > 0


def test_logprobs_of_completions(client, expected):
    answer = client.completions.create(prompt="The sky", logprobs=3, **GREEDY)
    found = answer.choices[0].logprobs
    own = expected("The sky", temperature=0, max_tokens=8, ignore_eos=True, logprobs=3).outputs[0]
    assert found.token_logprobs == pytest.approx([entry.logprob for entry in own.logprobs])
    assert len(found.tokens) == len(found.text_offset) == len(found.top_logprobs) == 8
    for token, value, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())
        assert 3 <= len(top) <= 4
    chunks = client.completions.create(prompt="The sky", logprobs=3, stream=True, **GREEDY)
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for each in streamed if each for token in each.tokens] == found.tokens
    assert [at for each in streamed if each for at in each.text_offset] == found.text_offset


def test_echo_with_logprobs_tells_of_the_prompt(client):
    asked = {**GREEDY, "max_tokens": 1}
    answer = client.completions.create(prompt="The sky", echo=True, logprobs=1, **asked)
    found = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("The sky")
    assert found.token_logprobs[0] is None
    assert len(found.tokens) == len("The sky") + 1
    assert found.text_offset[:7] == list(range(7))
    assert all(value < 0 for value in found.token_logprobs[1:])
    none = client.completions.create(prompt="The sky", echo=True, logprobs=1, **{**GREEDY, "max_tokens": 0})
    assert none.choices[0].text == "The sky"
    assert none.choices[0].logprobs.token_logprobs[1:] == found.token_logprobs[1:7]
    many = client.completions.create(prompt="The sky", echo=True, logprobs=1, n=2, **asked)
    assert many.choices[1].logprobs.token_logprobs[:7] == found.token_logprobs[:7]


def test_logprobs_of_chat(client):
    answer = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY)
    content = answer.choices[0].logprobs.content
    assert len(content) == 8
    for entry in content:
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert not math.isinf(entry.logprob)
        assert bytes(entry.bytes).decode("utf-8", errors="replace") == entry.token
    streamed = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, stream=True, **GREEDY)
    again = [entry for chunk in streamed if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert again == content


def test_token_ids_and_several_prompts(client):
    ids = [72, 69]
    one, two = client.completions.create(prompt=[ids, [40]], **GREEDY).choices
    assert client.completions.create(prompt=ids, **GREEDY).choices[0].text == one.text
    assert client.completions.create(prompt=[40], **GREEDY).choices[0].text == two.text


def test_a_conversation_that_is_asked_again_is_cached(client):
    asked = {**GREEDY, "messages": [{"role": "user", "content": "x" * 100}]}
    client.chat.completions.create(**asked)
    again = client.chat.completions.create(**asked)
    assert again.usage.prompt_tokens_details.cached_tokens >= 96


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_errors_become_the_clients_exceptions(client, url):
    with pytest.raises(openai.BadRequestError, match="max_tokns"):
        client.completions.create(model="tiny", prompt="x", extra_body={"max_tokns": 1})
    with pytest.raises(openai.BadRequestError, match="context holds 256") as caught:
        client.completions.create(model="tiny", prompt="x" * 300)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.completions.create(model="other", prompt="x")
    with openai.OpenAI(base_url=url, api_key="wrong") as other, pytest.raises(openai.AuthenticationError):
        other.models.list()
    with pytest.raises(openai.NotFoundError, match="embeddings"):
        client.embeddings.create(model="tiny", input="x")


def test_headers(client):
    raw = client.completions.with_raw_response.create(prompt="x", extra_headers={"X-Request-Id": "my-id"}, **GREEDY)
    assert raw.headers["x-request-id"] == "my-id"
    assert raw.parse().id == "cmpl-my-id"
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(prompt="x", extra_headers={"X-Request-Timeout": "0.000001"}, **GREEDY)
    assert caught.value.status_code == 504


@pytest.mark.anyio
async def test_the_asynchronous_client(url, client):
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY).choices[0].message.content
    async with openai.AsyncOpenAI(base_url=url, api_key="s3cret", max_retries=0) as other:
        answer = await other.chat.completions.create(messages=MESSAGES, **GREEDY)
        assert answer.choices[0].message.content == whole
        stream = await other.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == whole
        completions = await other.completions.create(prompt="x", stream=True, **GREEDY)
        async for chunk in completions:
            assert chunk.object == "text_completion"
            break  # leaving early is no error
        await completions.close()
        assert [model.id async for model in other.models.list()] == ["tiny", "also-tiny"]
