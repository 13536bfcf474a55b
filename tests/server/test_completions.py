import pytest

from slipstream.engine.echo import EchoEngine
from tests.server.serving import byte_tokenizer, echo_app, error_of, events, post

pytestmark = [pytest.mark.fast, pytest.mark.anyio]


async def texts(**fields) -> list[str]:
    return [choice["text"] for choice in (await post(fields)).json()["choices"]]


async def test_whole_answer():
    response = await post({"model": "tiny", "prompt": "abc"})
    assert response.status_code == 200
    answer = response.json()
    assert answer.pop("id") == f"cmpl-{response.headers['x-request-id']}"
    assert answer == {
        "object": "text_completion",
        "created": 1_800_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_stream_with_usage_at_the_end():
    response = await post({"prompt": "ab", "stream": True, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    first, second, last = events(response)
    assert [each["choices"][0]["text"] for each in (first, second)] == ["a", "b"]
    assert (first["choices"][0]["finish_reason"], second["choices"][0]["finish_reason"]) == (None, "stop")
    assert first["usage"] is None
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert len({each["id"] for each in (first, second, last)}) == 1


async def test_usage_in_every_chunk():
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await post({"prompt": "abc", "stream": True, "stream_options": options}))
    assert [each["usage"]["completion_tokens"] for each in chunks] == [1, 2, 3, 3]


async def test_stream_without_options_has_no_usage():
    chunks = events(await post({"prompt": "ab", "stream": True}))
    assert all("usage" not in each for each in chunks)
    assert all(each["choices"] for each in chunks)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
async def test_forms_of_prompts(prompt, expected):
    ids = byte_tokenizer().encode("abc")

    def own(value):
        return [own(each) for each in value] if isinstance(value, list) else ids[value - 97]

    if not isinstance(prompt, str) and not isinstance(prompt[0], str):
        prompt = own(prompt)
    assert await texts(prompt=prompt) == expected


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt():
    answer = (await post({"prompt": ["ab", "c"], "n": 2})).json()
    assert [(each["index"], each["text"]) for each in answer["choices"]] == [(0, "ab"), (1, "ab"), (2, "c"), (3, "c")]
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": None,
    }


async def test_streamed_choices_of_several_prompts():
    chunks = events(await post({"prompt": ["ab", "c"], "n": 2, "stream": True}))
    found = ["", "", "", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        found[choice["index"]] += choice["text"]
    assert found == ["ab", "ab", "c", "c"]


async def test_max_tokens_is_sixteen_by_default():
    [text] = await texts(prompt="x" * 40)
    assert text == "x" * 16
    answer = (await post({"prompt": "abc", "max_tokens": 2})).json()
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_echo():
    assert await texts(prompt="ab", echo=True, max_tokens=1) == ["aba"]
    assert await texts(prompt=["ab", "cd"], echo=True, max_tokens=0) == ["ab", "cd"]
    assert await texts(prompt=byte_tokenizer().encode("hé"), echo=True, max_tokens=0) == ["hé"]
    chunks = events(await post({"prompt": "ab", "echo": True, "max_tokens": 1, "stream": True}))
    assert "".join(each["choices"][0]["text"] for each in chunks) == "aba"


async def test_best_of_equal_to_n_changes_nothing():
    assert await texts(prompt="a", n=2, best_of=2) == ["a", "a"]


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"suffix": "end"}, "suffix", "suffix is not supported"),
        ({"best_of": 3}, "best_of", "not supported"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": ["x"] * 257}, "prompt", "at most 256"),
        ({"prompt": None}, "prompt", "valid string"),
        ({"prompt": [1, "a"]}, "prompt[1]", "valid"),
        ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        ({"max_tokens": 0}, "max_tokens", "echo must be true"),
        ({"max_tokens": -1}, "max_tokens", "-1"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"n": 0}, "n", "0"),
        ({"n": 129}, "n", "at most 128"),
        ({"logprobs": 21}, "logprobs", "at most 20"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": True}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "0"),
        ({"presence_penalty": 3}, "presence_penalty", "3"),
        ({"logit_bias": {"x": 1}}, None, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]", "101"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stop": "x" * 1001}, "stop", "1000 characters"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"seed": -1}, "seed", "-1"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"timeout": 0}, "timeout", "above 0"),
        ({"max_tokns": 3}, "max_tokns", "Did you mean max_tokens?"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "not a field"),
    ],
)
async def test_bad_fields_are_named(fields, param, part):
    response = await post({"prompt": "abc", **fields})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert part in error["message"]
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "not valid JSON: it is empty"),
        (b" \n", "not valid JSON: it is empty"),
        (b"{", "not valid JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"prompt": "a", "temperature": NaN}', "finite"),
        (b'{"prompt": "a", "temperature": 1e999}', "finite"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "number out of range"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
async def test_bodies_that_are_none(raw, part):
    response = await post(raw)
    assert response.status_code == 400
    assert part in error_of(response)["message"]


async def test_prompts_that_do_not_fit_are_refused_with_the_numbers():
    response = await post({"prompt": "x" * 256})
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert "256 tokens" in error["message"]
    assert "holds 256" in error["message"]
    assert (await post({"prompt": "x" * 255, "max_tokens": 1})).status_code == 200


async def test_an_unknown_model_is_a_404_and_aliases_are_known():
    response = await post({"model": "gpt-9", "prompt": "a"})
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
    assert (await post({"model": "also-tiny", "prompt": "a"})).json()["model"] == "also-tiny"
    assert (await post({"prompt": "a"})).json()["model"] == "tiny"


async def test_harmless_fields_are_accepted_and_listed():
    response = await post({"prompt": "a", "user": "me", "metadata": {"a": 1}, "store": None})
    assert response.status_code == 200
    assert response.headers["x-slipstream-ignored"] == "user, metadata"
    assert "x-slipstream-ignored" not in (await post({"prompt": "a"})).headers


async def test_timings_on_request():
    answer = (await post({"prompt": "abc", "timings": True})).json()
    assert set(answer["timings"]) == {
        "queue_ms",
        "prefill_ms",
        "ttft_ms",
        "decode_ms",
        "tpot_ms",
        "e2e_ms",
        "cached_tokens",
        "preemptions",
        "draft_tokens",
        "accepted_tokens",
        "mean_accepted_length",
        "time_saved_ms",
    }
    *_, last = events(await post({"prompt": "abc", "stream": True, "timings": True}))
    assert last["choices"] == []
    assert last["timings"]["cached_tokens"] == 0


async def test_a_crash_before_the_first_token_is_a_status():
    app = echo_app(EchoEngine(byte_tokenizer().decode, fail_after=0))
    for stream in (False, True):
        response = await post({"prompt": "abc", "stream": stream}, app=app)
        assert response.status_code == 500
        assert error_of(response)["code"] == "engine_error"


async def test_a_crash_later_is_an_event():
    app = echo_app(EchoEngine(byte_tokenizer().decode, fail_after=1))
    *_, last = events(await post({"prompt": "abc", "stream": True}, app=app))
    assert last["error"]["code"] == "engine_error"


async def test_a_restarting_engine_is_a_503_that_says_when_to_come_again():
    engine = EchoEngine(byte_tokenizer().decode)
    app = echo_app(engine)
    engine.crash(retry_after=2.5)
    for stream in (False, True):
        response = await post({"prompt": "abc", "stream": stream}, app=app)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "3"
        assert error_of(response)["code"] == "engine_unavailable"
    engine.recover()
    assert (await post({"prompt": "abc"}, app=app)).status_code == 200


async def test_deadlines():
    app = echo_app(EchoEngine(byte_tokenizer().decode, delay=0.05))
    late = await post({"prompt": "abc", "timeout": 0.01}, app=app)
    assert late.status_code == 504
    assert error_of(late)["code"] == "deadline_exceeded"
    cut = await post({"prompt": "x" * 200, "max_tokens": 200}, app=app, headers={"X-Request-Timeout": "0.2"})
    assert cut.status_code == 200
    [choice] = cut.json()["choices"]
    assert choice["finish_reason"] == "deadline"
    assert 0 < len(choice["text"]) < 200
    bad = await post({"prompt": "a"}, app=app, headers={"X-Request-Timeout": "soon"})
    assert bad.status_code == 400
    assert error_of(bad)["param"] == "X-Request-Timeout"


async def test_the_servers_limit_holds_for_requests_that_state_more():
    app = echo_app(EchoEngine(byte_tokenizer().decode, delay=0.05), request_timeout=0.01)
    assert (await post({"prompt": "abc", "timeout": 60}, app=app)).status_code == 504
    assert (await post({"prompt": "abc"}, app=app)).status_code == 504
