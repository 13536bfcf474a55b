from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest

from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import MAX_LOGPROBS, MAX_SEED, SamplingParams

pytestmark = pytest.mark.fast

BAD_VALUES = [
    ("n", 0),
    ("n", True),
    ("n", 1.0),
    ("n", 4097),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", None),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", False),
    ("top_p", 0.0),
    ("top_p", 1.0001),
    ("top_p", math.nan),
    ("min_p", -0.01),
    ("min_p", 1.5),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", 2.01),
    ("frequency_penalty", -2.01),
    ("frequency_penalty", math.nan),
    ("logit_bias", [1]),
    ("logit_bias", {1: 101.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {-1: 0.0}),
    ("logit_bias", {"a": 0.0}),
    ("logit_bias", {1: "x"}),
    ("bad_words", ("",)),
    ("bad_words", (1,)),
    ("bad_words_ids", ((),)),
    ("bad_words_ids", (1,)),
    ("bad_words_ids", ((-1,),)),
    ("allowed_token_ids", (-1,)),
    ("allowed_token_ids", 3),
    ("allowed_token_ids", np.array(3)),
    ("max_tokens", 0),
    ("max_tokens", 2.0),
    ("min_tokens", -1),
    ("min_tokens", None),
    ("stop", ""),
    ("stop", ("a", "")),
    ("stop", (1,)),
    ("stop", b"a"),
    ("stop_token_ids", (1.0,)),
    ("stop_token_ids", (-5,)),
    ("stop_token_ids", "12"),
    ("ignore_eos", 1),
    ("skip_special_tokens", "yes"),
    ("include_stop_str_in_output", None),
    ("seed", -1),
    ("seed", MAX_SEED + 1),
    ("seed", 1.0),
    ("logprobs", -1),
    ("logprobs", MAX_LOGPROBS + 1),
    ("prompt_logprobs", True),
    ("grammar", "regex"),
]


@pytest.mark.parametrize("field", ["n", "temperature", "presence_penalty", "max_tokens", "logprobs", "seed"])
def test_integers_beyond_all_floats_are_refused(field: str) -> None:
    with pytest.raises(InvalidParamsError, match=f"^{field}: .* got -1000"):
        SamplingParams(**{field: -(10**400)})


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.where is not None
    assert caught.value.where.startswith(field)
    if not isinstance(value, (list, tuple, dict)):
        assert repr(value) in str(caught.value)


def test_every_field_has_a_refused_value() -> None:
    assert {field for field, _ in BAD_VALUES} == {f.name for f in dataclasses.fields(SamplingParams)}


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert SamplingParams(min_tokens=3, max_tokens=3).min_tokens == 3
    with pytest.raises(InvalidParamsError, match=r"min_tokens: must be at most max_tokens \(3\), got 4"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_values_are_normalised() -> None:
    params = SamplingParams(
        top_k=-1,
        temperature=0,
        stop="end",  # type: ignore[arg-type]
        bad_words=["a", "b"],  # type: ignore[arg-type]
        bad_words_ids=[[1, 2], [3]],  # type: ignore[arg-type]
        stop_token_ids=np.array([4, 5]),  # type: ignore[arg-type]
        logit_bias={np.int64(7): np.float32(0.5)},
        allowed_token_ids=None,  # type: ignore[arg-type]
        seed=np.uint64(MAX_SEED),  # type: ignore[arg-type]
    )
    assert params.top_k == 0
    assert params.stop == ("end",)
    assert params.bad_words == ("a", "b")
    assert params.bad_words_ids == ((1, 2), (3,))
    assert params.stop_token_ids == (4, 5)
    assert params.logit_bias == {7: 0.5}
    assert params.allowed_token_ids == ()
    assert params.seed == MAX_SEED
    assert type(params.temperature) is float
    assert {type(value) for value in (*params.stop_token_ids, params.seed, *params.logit_bias)} == {int}


def test_the_callers_dict_is_copied() -> None:
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 2.0
    assert params.logit_bias == {1: 1.0}


def test_boundaries_are_accepted() -> None:
    SamplingParams(top_p=1.0, min_p=1.0, presence_penalty=-2, frequency_penalty=2, logit_bias={0: -100, 1: 100})
    SamplingParams(
        temperature=5e-324, top_p=5e-324, repetition_penalty=5e-324, logprobs=0, prompt_logprobs=MAX_LOGPROBS
    )


def test_replace_checks_again_and_pickle_round_trips() -> None:
    params = SamplingParams(temperature=0.5, stop=("x",), logit_bias={3: -1.0})
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, temperature=0.7).temperature == 0.7
    with pytest.raises(InvalidParamsError):
        dataclasses.replace(params, temperature=-1.0)


def test_from_mapping_takes_json() -> None:
    params = SamplingParams.from_mapping({"top_p": 0.5, "logit_bias": {"12": -100}, "stop": None, "max_tokens": 5})
    assert params == SamplingParams(top_p=0.5, logit_bias={12: -100.0}, max_tokens=5)


@pytest.mark.parametrize(
    ("name", "message"),
    [("temprature", "Did you mean temperature?"), ("Top-P", "Did you mean top_p?"), ("zzz", "Known names: allowed_")],
)
def test_from_mapping_suggests_the_nearest_name(name: str, message: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        SamplingParams.from_mapping({name: 1})
    assert str(caught.value).startswith(f"{name}: is not a sampling parameter.")
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["-1", "1.0", "x", "²"])
def test_from_mapping_refuses_bias_keys_that_are_no_ids(key: str) -> None:
    with pytest.raises(InvalidParamsError, match="logit_bias key"):
        SamplingParams.from_mapping({"logit_bias": {key: 1.0}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {10: 1.0}),
        ("allowed_token_ids", (1, 10)),
        ("stop_token_ids", (10,)),
        ("bad_words_ids", ((1,), (2, 10))),
    ],
)
def test_ids_outside_the_vocabulary(field: str, value: object) -> None:
    params = SamplingParams(**{field: value})
    params.validate_for_vocab(11)
    with pytest.raises(InvalidParamsError, match=f"{field}: must be token ids below the vocabulary size 10, got 10"):
        params.validate_for_vocab(10)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"logit_bias": {1: 1.0}, "min_tokens": 3, "allowed_token_ids": (1,), "bad_words_ids": ((1,),)}, False),
        ({"bad_words_ids": ((1, 2),)}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
    ],
)
def test_needs_history(changes: dict[str, object], expected: bool) -> None:
    assert SamplingParams(**changes).needs_history is expected
