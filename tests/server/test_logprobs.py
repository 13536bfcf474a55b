import math

import pytest

from slipstream.sampling.logprobs import TokenLogprob
from slipstream.server.logprobs import LOWEST, CompletionLogprobs, chat_logprobs, token_text
from tests.server.serving import byte_tokenizer

pytestmark = pytest.mark.fast

A, B, HALF = byte_tokenizer().encode("ab") + byte_tokenizer().encode("é")[:1]


def test_bytes_that_are_no_text():
    assert token_text(byte_tokenizer(), A) == "a"
    assert token_text(byte_tokenizer(), HALF) == "bytes:\\xc3"
    assert token_text(byte_tokenizer(), 10**6) == ""


def test_chat_form():
    entry = TokenLogprob(HALF, -1.5, 2, ((A, -0.5), (B, -math.inf)))
    assert chat_logprobs(byte_tokenizer(), [entry]) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.5,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "b", "logprob": LOWEST, "bytes": [98]},
                ],
            }
        ],
        "refusal": None,
    }


def test_completion_form_goes_on_from_chunk_to_chunk():
    writer = CompletionLogprobs(byte_tokenizer(), 1)
    first = writer.chunk([A, B], [None, TokenLogprob(B, -2.0, 2, ((A, -1.0),))])
    assert first == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"a": -1.0, "b": -2.0}],
        "text_offset": [0, 1],
    }
    second = writer.chunk([A], [TokenLogprob(A, -1.0, 1, ((A, -1.0),))])
    assert second["text_offset"] == [2]
    assert second["top_logprobs"] == [{"a": -1.0}]


def test_without_alternatives_there_are_none():
    writer = CompletionLogprobs(byte_tokenizer(), 0)
    assert writer.chunk([A], [TokenLogprob(A, -1.0, 1)])["top_logprobs"] is None


def test_tokens_that_are_not_in_the_text_take_no_place_in_it():
    writer = CompletionLogprobs(byte_tokenizer(), 0)
    [end] = byte_tokenizer().encode("<|im_end|>")
    entries = [TokenLogprob(each, -1.0, 1) for each in (A, end, B)]
    assert writer.chunk([A, end, B], entries, [True, False, True])["text_offset"] == [0, 1, 1]
