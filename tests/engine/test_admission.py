import pytest

from slipstream.engine.admission import (
    AdaptiveLimit,
    FixedLimit,
    LimitChange,
    RequestTooLargeError,
    refuse_impossible,
    watermark_blocks,
)
from slipstream.engine.request import Request, make_request
from slipstream.kv.manager import KVManager
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


def request(num_prompt: int, max_tokens: int) -> Request:
    return make_request("r", [1] * num_prompt, SamplingParams(max_tokens=max_tokens), max_model_len=99, arrival=0.0)


def test_the_last_token_needs_no_block() -> None:
    kv = KVManager(3, 4)
    refuse_impossible(request(8, 5), kv, 8, False)
    with pytest.raises(RequestTooLargeError) as caught:
        refuse_impossible(request(8, 6), kv, 8, False)
    message = str(caught.value)
    for part in ("request r", "8 prompt", "up to 6 output", "4 KV blocks of 4 tokens", "pool has 3", "max_tokens"):
        assert part in message


def test_without_chunking_a_prompt_must_fit_into_a_step() -> None:
    kv = KVManager(9, 4)
    refuse_impossible(request(9, 2), kv, 8, True)
    with pytest.raises(RequestTooLargeError, match=r"prompt has 9 tokens.*max_num_batched_tokens = 8"):
        refuse_impossible(request(9, 2), kv, 8, False)


def test_watermark_rounds_up() -> None:
    assert [watermark_blocks(n, 0.01) for n in (1, 100, 101)] == [1, 1, 2]
    assert watermark_blocks(100, 0.0) == 0


def test_fixed_limit_stays() -> None:
    limit = FixedLimit(5)
    limit.observe(1, 5, 99)
    assert limit.limit == 5


def test_frequent_preemptions_lower_the_limit_and_calm_raises_it_visibly() -> None:
    limit = AdaptiveLimit(16, window=10, max_preemptions=3)
    limit.observe(1, 12, 2)
    assert limit.limit == 16
    limit.observe(5, 12, 1)
    assert limit.limit == 9
    for step in range(6, 15):
        limit.observe(step, 9, 0)
        assert limit.limit == 9
    limit.observe(15, 9, 0)
    assert limit.limit == 11
    for step in range(16, 80):
        limit.observe(step, 9, 0)
    assert limit.limit == 16
    assert list(limit.changes)[:2] == [
        LimitChange(5, 16, 9, "3 preemptions in 10 steps"),
        LimitChange(15, 9, 11, "no preemption in 10 steps"),
    ]


def test_rare_preemptions_change_nothing() -> None:
    limit = AdaptiveLimit(16, window=10, max_preemptions=3)
    for step in range(1, 100):
        limit.observe(step, 16, int(step % 5 == 0))
    assert (limit.limit, len(limit.changes)) == (16, 0)


def test_the_limit_never_falls_below_one() -> None:
    limit = AdaptiveLimit(2, window=10, max_preemptions=1)
    for step in range(1, 9):
        limit.observe(step, 1, 1)
        assert limit.limit == 1
