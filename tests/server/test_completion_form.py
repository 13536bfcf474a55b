"""Offsets of log-probabilities count in the text that is shown."""

import pytest

from slipstream.engine.outputs import OutputDelta
from slipstream.sampling.logprobs import TokenLogprob
from slipstream.sampling.params import SamplingParams
from slipstream.server.answers.completions import CompletionForm, CompletionStream
from slipstream.server.generate import Job, Prompt
from tests.server.serving import byte_tokenizer

pytestmark = pytest.mark.fast

TOKENIZER = byte_tokenizer()
[END] = TOKENIZER.encode("<|im_end|>")
[A], [B] = TOKENIZER.encode("a"), TOKENIZER.encode("b")


def offsets(prompt: Prompt, output: list[int], **params) -> tuple[str, list[int]]:
    job = Job("x", (prompt,), SamplingParams(logprobs=0, prompt_logprobs=0, **params))
    form = CompletionForm(job, "tiny", 0, TOKENIZER, echo=True)
    entries = tuple(TokenLogprob(token, -1.0, 1) for token in output)
    before = (None, *(TokenLogprob(token, -1.0, 1) for token in prompt.token_ids[1:]))
    text = TOKENIZER.decode(output, skip_special_tokens=job.params.skip_special_tokens)
    delta = OutputDelta("x", 0, text, tuple(output), entries, before, "stop")
    [chunk] = CompletionStream(form).chunks(delta)
    choice = chunk["choices"][0]
    return choice["text"], choice["logprobs"]["text_offset"]


def test_a_bos_that_is_not_in_the_text():
    assert offsets(Prompt((END, A), "a"), [B]) == ("ab", [0, 0, 1])


def test_special_tokens_that_the_client_wrote():
    assert offsets(Prompt((END, A, END), "<|im_end|>a<|im_end|>"), [B]) == ("<|im_end|>a<|im_end|>b", [0, 10, 11, 21])


def test_prompts_of_ids_and_skipped_tokens_of_the_output():
    assert offsets(Prompt((END, A)), [B, END, B]) == ("abb", [0, 0, 1, 2, 2])
    assert offsets(Prompt((A,)), [END, B], skip_special_tokens=False) == ("a<|im_end|>b", [0, 1, 11])
