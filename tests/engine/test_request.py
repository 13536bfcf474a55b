import pytest

from slipstream.engine.request import SEED_RANGE, Request, RequestStats, make_children, make_request
from slipstream.errors import ContextLengthError, InvalidParamsError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(prompt: tuple[int, ...] = (5, 6, 7), *, max_model_len: int = 20, **params: object) -> Request:
    return make_request(
        "r",
        prompt,
        SamplingParams(**params),  # type: ignore[arg-type]
        max_model_len=max_model_len,
        eos_token_ids=(2, 3),
        arrival=1.0,
    )


def test_without_max_tokens_the_answer_may_reach_the_contexts_end() -> None:
    assert request().max_tokens == 17
    assert request(max_model_len=4).max_tokens == 1


def test_max_tokens_beyond_the_context_is_refused_with_all_numbers() -> None:
    assert request(max_tokens=5).max_tokens == 5
    assert request(max_tokens=17).max_tokens == 17
    with pytest.raises(
        ContextLengthError, match="prompt has 3 tokens and max_tokens asks for 18, but the context holds 20"
    ) as caught:
        request(max_tokens=18)
    error = caught.value
    assert (error.num_prompt_tokens, error.num_output_tokens, error.max_model_len) == (3, 18, 20)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthError, match="prompt has 3 tokens, but the context holds 3") as caught:
        request(max_model_len=3)
    error = caught.value
    assert (error.num_prompt_tokens, error.num_output_tokens, error.max_model_len) == (3, None, 3)


def test_bad_prompts() -> None:
    with pytest.raises(InvalidParamsError, match="request r: the prompt is empty"):
        request(())
    with pytest.raises(InvalidParamsError, match="token id -4"):
        request((1, -4))


def test_stop_tokens_are_the_models_and_the_requests_own() -> None:
    assert request().stop_token_ids == (2, 3)
    assert request(stop_token_ids=(3, 9)).stop_token_ids == (2, 3, 9)
    assert request(stop_token_ids=(3, 9), ignore_eos=True).stop_token_ids == (3, 9)
    assert request(ignore_eos=True).stop_token_ids == ()


def test_a_given_seed_is_kept_and_another_drawn() -> None:
    assert request(seed=11).seed == 11
    drawn = {request().seed for _ in range(8)}
    assert len(drawn) == 8
    assert all(0 <= seed < SEED_RANGE for seed in drawn)


def test_append_ends_on_a_stop_token_or_on_length() -> None:
    r = request(max_tokens=3)
    assert [r.append(8), r.append(2)] == [False, True]
    assert (r.finish_reason, r.stop_token, r.output_token_ids) == ("stop", 2, [8, 2])
    r = request(max_tokens=2)
    assert [r.append(8), r.append(8)] == [False, True]
    assert (r.finish_reason, r.stop_token) == ("length", None)


def test_a_stop_token_as_the_last_one_allowed_is_a_stop() -> None:
    r = request(max_tokens=1)
    assert r.append(3)
    assert r.finish_reason == "stop"


def test_min_tokens_holds_a_stop_back() -> None:
    r = request(min_tokens=2)
    assert [r.append(2), r.append(2), r.append(2)] == [False, False, True]


def test_counts_follow_the_tokens() -> None:
    r = request(max_tokens=4)
    assert (r.pending, r.decoding, r.max_computed) == (3, False, 6)
    r.computed = 3
    r.append(9)
    r.draft = (1, 2)
    assert (r.pending, r.decoding, r.num_output_tokens, r.tokens) == (3, True, 1, [5, 6, 7, 9])


@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"bad_words_ids": ((1,),)}],
)
def test_history_is_sent_only_where_it_is_read(params: dict[str, object]) -> None:
    plain, penalised = request(temperature=0.5, top_k=3), request(**params)
    assert (plain.needs_history, penalised.needs_history) == (False, True)
    assert plain.row_sampling(samples=True).history == ()
    assert penalised.row_sampling(samples=False).history == ()
    assert penalised.row_sampling(samples=True).history == (5, 6, 7)
    penalised.append(4)
    assert penalised.row_sampling(samples=True).history == (5, 6, 7, 4)


def test_row_sampling_is_complete() -> None:
    sampling = request(seed=4, min_tokens=2).row_sampling(samples=True)
    assert (sampling.seed, sampling.num_prompt_tokens, sampling.stop_token_ids) == (4, 3, (2, 3))
    assert sampling.params.min_tokens == 2


def test_prompt_logprobs_need_history_until_they_are_complete() -> None:
    r = request(prompt_logprobs=0)
    assert r.lacks_prompt_logprobs
    assert r.row_sampling(samples=False).history == (5, 6, 7)
    assert not request((5,), prompt_logprobs=0).lacks_prompt_logprobs
    assert not request().lacks_prompt_logprobs


def test_children_differ_by_seed_and_leave_prompt_logprobs_to_the_parent() -> None:
    parent = request(n=3, seed=SEED_RANGE - 1, prompt_logprobs=1, max_tokens=4)
    children = make_children(parent)
    assert [(c.id, c.seed, c.fork_of) for c in children] == [("r/1", 0, "r"), ("r/2", 1, "r")]
    for child in children:
        assert (child.params.n, child.params.prompt_logprobs, child.max_tokens) == (1, None, 4)
        assert child.table is not parent.table
        assert child.tokens == parent.tokens
        assert child.tokens is not parent.tokens
    assert make_children(request()) == []


def test_stats() -> None:
    stats = RequestStats(arrival=1.0)
    assert (stats.queue_time, stats.ttft, stats.tpot(5)) == (None, None, None)
    stats.first_scheduled, stats.first_token, stats.finished = 1.5, 3.0, 7.0
    assert (stats.queue_time, stats.ttft, stats.tpot(5), stats.tpot(1)) == (0.5, 2.0, 1.0, None)
