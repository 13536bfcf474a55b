from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import GrammarError, RequestError
from slipstream.sampling.grammar.bounds import MAX_DIGITS
from slipstream.sampling.grammar.forced import WINDOW
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import SECONDS_AT_START, GrammarState
from slipstream.sampling.grammar.states import GrammarStates
from tests.sampling.grammar.tiny_vocabulary import (
    EOS,
    TOKENIZER,
    VOCAB_SIZE,
    compiler,
    next_texts,
    shared_compiler,
    state,
    text_of,
    walk,
)

PERSON = GrammarSpec.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
TREE = GrammarSpec.json_schema(
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "number"},
                    "kind": {"enum": ["leaf", "branch"]},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3},
                },
                "required": ["v", "kids", "kind"],
                "additionalProperties": False,
            }
        },
    }
)
CODE = GrammarSpec.regex(r"([0-9]{3}-){2,9}[a-f]+@x\.org")


def test_the_mask_is_what_the_grammar_allows() -> None:
    assert next_texts(state(GrammarSpec.regex("(ab|ac)*x"), "ab")) == {"a", "ab", "abc"} - {"abc"} | {"x"}
    assert next_texts(state(GrammarSpec.choice(["abc", "abd"]), "ab")) == {"c", "d"}
    assert next_texts(state(GrammarSpec.json_object())) == {"{", '{"', "{}"}


def test_the_end_of_sequence_is_allowed_exactly_where_the_text_may_end() -> None:
    assert next_texts(state(GrammarSpec.regex("ab*"), "a")) == {"b", "END"}
    assert "END" not in next_texts(state(GrammarSpec.regex("ab"), "a"))
    scores = np.zeros(VOCAB_SIZE)
    mask = state(GrammarSpec.regex("ab*"), "a").mask(scores, remaining=9)
    assert mask[list(EOS)].all()
    mask = state(GrammarSpec.regex("ab*"), "a").mask(scores, remaining=9, keep_eos=False)
    assert np.flatnonzero(mask).tolist() == [ord("b")]


def test_a_complete_text_is_known_as_such() -> None:
    assert state(PERSON, '{"name":"x","age":1}').finished
    assert not state(PERSON, '{"name":"x","age":1').finished
    endless = state(GrammarSpec.regex("a+"), "a")
    assert endless.accepting
    assert not endless.finished


def test_whitespace_is_not_allowed_unless_asked_for() -> None:
    assert " " not in next_texts(state(PERSON, '{"name":"x",'))
    free = GrammarSpec.json_schema(json.loads(PERSON.source), bounded=False)
    assert " " in next_texts(state(free, '{"name":"x",'))


def test_numbers_end() -> None:
    endless = state(GrammarSpec.json_schema({"type": "array", "items": {"type": "number"}}), "[0." + "3" * MAX_DIGITS)
    assert next_texts(endless) == {",", "]", "e", "E"}
    needed = state(GrammarSpec.json_schema({"type": "array", "items": {"enum": [10**30]}}), "[1" + "0" * MAX_DIGITS)
    assert next_texts(needed) == {"0"}
    inside = state(PERSON, '{"name":"' + "3" * MAX_DIGITS)
    assert "3" in next_texts(inside)


def test_strings_and_arrays_end() -> None:
    spec = GrammarSpec.json_schema({"type": "array", "items": {"type": "string"}})
    assert next_texts(state(spec, '["' + "a" * 4096)) == {'"', '",'}
    ones = GrammarSpec.json_schema({"type": "array", "items": {"const": 1}})
    assert next_texts(state(ones, "[" + "1," * 255 + "1")) == {"]"}


def test_forced_tokens_spell_what_has_no_alternative() -> None:
    assert text_of(state(PERSON).forced_tokens()) == '{"name'  # what follows could be one token with the value
    assert state(PERSON, '{"name":"').forced_tokens() == []
    assert text_of(state(GrammarSpec.regex("ab12")).forced_tokens()) == "ab12"  # nothing follows
    assert text_of(state(GrammarSpec.regex("a{9999}")).forced_tokens()) == "a" * (WINDOW - 1)


def test_text_without_alternative_is_spelled_as_the_tokenizer_does() -> None:
    assert next_texts(state(GrammarSpec.regex("abc[0-9]"))) == {"a", "ab", "abc"}  # [0-9] may join it
    assert next_texts(state(GrammarSpec.regex("abcname[0-9]"))) == {"abc"}
    assert next_texts(state(PERSON)) == {'{"'}


def test_a_grammar_whose_masks_take_too_long_fails_its_request_alone() -> None:
    seconds = iter(np.arange(0.0, 9.0, SECONDS_AT_START / 2 + 0.004))
    at = GrammarState(
        shared_compiler().compile(GrammarSpec.regex("a*")), name="guided_regex", clock=lambda: float(next(seconds))
    )
    scores = np.zeros(VOCAB_SIZE)
    at.mask(scores, remaining=9999)
    at.advance([97])
    at.mask(scores, remaining=9999)  # 0.508 s, and 0.52 are granted
    at.advance([97])
    with pytest.raises(
        GrammarError,
        match=r"guided_regex: following the grammar took 0.76 s of processor time by output 2, and 0.54 s are granted",
    ):
        at.mask(scores, remaining=9999)


def test_endings_are_looked_for_with_half_of_the_time_and_what_is_known_is_kept() -> None:
    """An answer that has too little time for its ending is cut off; it was an error."""
    now = [0.0]

    def clock() -> float:
        now[0] += seconds_per_look
        return now[0]

    seconds_per_look = 0.0
    spec = GrammarSpec.json_schema({"type": "array", "items": {"type": "string", "maxLength": 3}})
    at = GrammarState(shared_compiler().compile(spec), clock=clock)
    scores = np.zeros(VOCAB_SIZE)
    scores[ord("a")] = 1.0
    at.advance(TOKENIZER.encode('["a'))
    usual = at.mask(scores, remaining=3)
    assert usual[[ord("a"), ord('"')]].all()  # the ending "] fits behind both
    seconds_per_look = 1e-3
    while at._search_seconds < SECONDS_AT_START / 2:
        assert np.array_equal(at.mask(scores, remaining=3), usual)
    seconds_per_look = 0.0
    assert np.array_equal(at.mask(scores, remaining=3), usual)
    assert np.flatnonzero(at.mask(scores, remaining=2)).tolist() == [ord('"')]
    assert at._search_seconds < SECONDS_AT_START / 2 + 0.02


@pytest.mark.parametrize(
    ("schema", "text", "ending"),
    [
        ({"type": "integer", "multipleOf": 7}, "", "0"),
        ({"type": "integer", "multipleOf": 7}, "12", "6"),
        ({"type": "integer", "multipleOf": 997}, "-12", "961"),
        ({"type": "number", "multipleOf": 0.25}, "1.2", "5"),
        ({"type": "integer", "multipleOf": 13, "minimum": 1}, "", "13"),
        ({"type": "integer", "multipleOf": 15, "minimum": 100}, "", "105"),
        ({"allOf": [{"type": "integer", "multipleOf": 6}, {"multipleOf": 15}]}, "1", "20"),
    ],
)
def test_multiples_are_completed(schema: dict[str, object], text: str, ending: str) -> None:
    """The search tried digit by digit, up to its limits, at every token; the answer failed for want of time."""
    spec = GrammarSpec.json_schema({"type": "array", "items": schema, "minItems": 1, "maxItems": 2})
    at = state(spec, "[" + text)
    found = at._search(at._byte_state())
    assert found is not None
    assert found.decode() == ending + "]"


@pytest.mark.parametrize(
    ("schema", "text", "ending"),
    [
        ({"type": "string", "format": "duration"}, '"P12', 'D"'),
        ({"type": "string", "pattern": "^[0-9]+[a-z]$"}, '"12', 'a"'),
        ({"type": "string", "pattern": "^[0-9]+-[A-F]$"}, '"1', '-A"'),
    ],
)
def test_digits_in_texts_are_not_taken_for_numbers(schema: dict[str, object], text: str, ending: str) -> None:
    """The search went on with zeros, and the text was cut off."""
    at = state(GrammarSpec.json_schema(schema), text)
    assert at.compiled.shortest is not None
    assert (at._search(at._byte_state()) or b"").decode() == ending


@pytest.mark.parametrize("step", [3, 60, 997, 0.05])
def test_answers_with_multiples_end_within_their_budget(step: float) -> None:
    spec = GrammarSpec.json_schema({"type": "array", "items": {"type": "number", "multipleOf": step}})
    for seed in range(4):
        tokens, _ = walk(spec, 30 + seed, seed, eos_bias=-9.0)
        for number in json.loads(text_of(tokens)):
            assert (round(100 * number) % round(100 * step)) == 0


def test_a_token_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(RequestError, match="does not allow token 122 at output 1"):
        state(GrammarSpec.regex("ab")).advance([ord("a"), ord("z")])


SHORTEST = {
    PERSON: '{"name":"","age":0}',
    TREE: '{"v":0,"kids":[],"kind":"leaf"}',
    CODE: "000-000-a@x.org",
    GrammarSpec.json_object(): "{}",
    GrammarSpec.choice(["abcabc", "age"]): "age",
}


def least(spec: GrammarSpec) -> int:
    """Tokens of the shortest answer."""
    return len(shared_compiler().compile(spec).vocabulary.spell(SHORTEST[spec].encode()) or ())


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(SHORTEST)), st.integers(0, 90), st.integers(0, 999))
def test_a_budget_that_suffices_always_does(spec: GrammarSpec, spare: int, seed: int) -> None:
    tokens, at = walk(spec, least(spec) + spare, seed, eos_bias=-9.0)
    text = text_of(tokens)
    assert at.accepting or tokens[-1] in EOS
    if spec.kind == "regex":
        assert re.fullmatch(spec.source, text)
    elif spec.kind == "choice":
        assert text in json.loads(spec.source)
    else:
        value = json.loads(text)
        assert spec is not PERSON or {"name", "age"} <= value.keys() <= {"name", "age", "tags"}


@pytest.mark.parametrize("spec", [PERSON, TREE])
def test_the_least_budget_suffices_and_no_smaller_one(spec: GrammarSpec) -> None:
    for seed in range(5):
        assert walk(spec, least(spec), seed)[1].accepting
        assert not walk(spec, least(spec) - 1, seed)[1].accepting


def test_a_budget_that_cannot_suffice_ends_within_it() -> None:
    tokens, at = walk(PERSON, 4, seed=0)
    assert len(tokens) == 4
    assert not at.accepting


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([PERSON, TREE, CODE]), st.integers(20, 120), st.integers(0, 999), st.data())
def test_a_state_is_the_same_however_it_was_reached(
    spec: GrammarSpec, budget: int, seed: int, data: st.DataObject
) -> None:
    """Forwards token by token, back from refused drafts, or rebuilt at once, as after a preemption."""
    tokens, _ = walk(spec, budget, seed)
    cut = data.draw(st.integers(0, len(tokens) - 1))
    back = data.draw(st.integers(0, cut))
    scores = np.random.default_rng(seed).standard_normal(VOCAB_SIZE)
    fresh = GrammarState(shared_compiler().compile(spec))
    fresh.sync(tokens[:cut])
    moved = GrammarState(shared_compiler().compile(spec))
    for token in tokens[:-1]:
        moved.mask(scores, remaining=budget)
        moved.advance([token])
    moved.sync(tuple(tokens[:back]))
    moved.sync(tuple(tokens[:cut]))
    expected = fresh.mask(scores, remaining=budget - cut)
    assert np.array_equal(moved.mask(scores, remaining=budget - cut), expected)
    assert moved.finished == fresh.finished


def test_states_are_forgotten_and_built_again() -> None:
    states = GrammarStates(compiler(), capacity=2)
    spec = GrammarSpec.regex("a*b")
    first = states.at("r", spec, (97,))
    assert states.at("r", spec, (97, 97)) is first
    assert states.at("r", GrammarSpec.regex("a+"), (97,)) is not first
    for name in ("s", "t"):
        states.at(name, spec, ())
    again = states.at("r", spec, (97, 97))
    assert again is not first
    assert next_texts(again) == {"a", "ab", "b"}
