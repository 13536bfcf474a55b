from __future__ import annotations

import weakref
from itertools import chain, repeat
from threading import Event, Thread, current_thread

import numpy as np
import pytest

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.compiler import MAX_CACHED, MAX_COMPILE_SECONDS, GrammarCompiler
from slipstream.sampling.grammar.forced import WINDOW
from slipstream.sampling.grammar.limits import MAX_OPTIONAL
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState
from slipstream.sampling.grammar.vocabulary import GrammarVocabulary
from tests.sampling.grammar.tiny_vocabulary import (
    EOS,
    TOKENIZER,
    VOCAB_SIZE,
    TinyTokenizer,
    compiler,
    next_texts,
    shared_readers,
    state,
    text_of,
)


def test_a_grammar_is_compiled_once() -> None:
    compile_ = compiler().compile
    first = compile_(GrammarSpec.regex("a+"))
    assert compile_(GrammarSpec.regex("a+")) is first
    assert compile_(GrammarSpec.regex("b+")) is not first
    for i in range(MAX_CACHED):
        compile_(GrammarSpec.regex(f"c{i}"))
    assert compile_(GrammarSpec.regex("a+")) is first  # it is still kept here
    forgotten = weakref.ref(compile_(GrammarSpec.regex("c0")))
    for i in range(MAX_CACHED):
        compile_(GrammarSpec.regex(f"d{i}"))
    assert forgotten() is None


def test_the_vocabulary_can_be_prepared_before_without_any_process() -> None:
    ours = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS)
    ours.warm_up()
    prepared = ours._vocabulary
    assert prepared is not None
    assert ours._readers is None
    ours.warm_up()
    compiled = ours.compile(GrammarSpec.choice(["ab", "12"]))
    assert ours._vocabulary is compiled.vocabulary is prepared
    assert next_texts(GrammarState(compiled)) == next_texts(state(GrammarSpec.choice(["ab", "12"])))


def test_threads_share_a_compiler() -> None:
    shared, found = compiler(), []
    threads = [Thread(target=lambda: found.append(shared.compile(GrammarSpec.regex("a+")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (GrammarSpec.json_schema("{"), "not JSON"),
        (GrammarSpec.json_schema("[1]"), "a schema is an object, not list"),
        (GrammarSpec.json_schema({"type": "strnig"}), "strnig"),
        (GrammarSpec.json_schema({"type": "object", "unevaluatedProperties": False}), "unevaluatedProperties"),
        (GrammarSpec.json_schema({"$ref": "#/$defs/none"}), "none"),
        (GrammarSpec.json_schema({"type": "integer", "minimum": 3, "maximum": 2}), ""),
        (GrammarSpec.json_schema('{"not":' * 3000 + "{}" + "}" * 3000), ""),
        (GrammarSpec.regex("(a"), ""),
        (GrammarSpec.grammar("start: unknown_rule"), "unknown_rule"),
        (GrammarSpec("choice", "[1"), ""),
        (GrammarSpec.grammar("start: " + "|".join(f'"x{i}"' for i in range(11_000))), "11001 alternatives"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(spec: GrammarSpec, why: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        compiler().compile(spec)
    assert caught.value.where == spec.kind
    assert why in caught.value.what
    assert "\n" not in caught.value.what


@pytest.mark.parametrize(
    ("spec", "begin"),
    [
        (GrammarSpec.regex("(ab){100000}{100000}"), ""),
        (GrammarSpec.regex("((ab){1000}){1000}{1000}"), ""),
        (GrammarSpec.json_schema({"const": "ab" * 100_000}), '"'),
        (GrammarSpec.json_schema({"const": "ab" * 100_000}, bounded=False), '"'),
        (GrammarSpec.choice(["ab" * 100_000]), ""),
        (GrammarSpec.grammar('start: "' + "ab" * 100_000 + '"'), ""),
        (GrammarSpec.grammar('root ::= "' + "ab" * 100_000 + '"'), ""),
        (GrammarSpec.grammar('%llguidance {"no_forcing": false}\nstart: /(ab){100000}{100000}/'), ""),
    ],
)
def test_text_without_alternative_is_not_followed_to_its_end(spec: GrammarSpec, begin: str) -> None:
    """It would take llguidance seconds, before every mask, and shows in that it would allow one token only."""
    compiled = compiler().compile(spec)
    assert compiled.shortest is None
    matcher = compiled.matcher.deep_copy()
    assert matcher.consume_tokens(TOKENIZER.encode(begin))
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    assert {TOKENIZER.token_bytes(i) for i in np.flatnonzero(mask).tolist()} == {b"a", b"ab"}
    at = GrammarState(compiled)
    at.advance(TOKENIZER.encode(begin))
    assert text_of(at.forced_tokens()) == "ab" * (WINDOW // 2 - 1)


def test_a_grammar_that_takes_long_to_read_is_refused() -> None:
    times = chain([0.0], repeat(MAX_COMPILE_SECONDS + 1))
    slow = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=shared_readers(), clock=lambda: next(times))
    with pytest.raises(InvalidParamsError, match=r"regex: cannot be used: it takes 3.0 s"):
        slow.compile(GrammarSpec.regex("a"))


def _optional(count: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}


def test_more_optional_properties_than_a_mask_has_time_for_are_refused_at_once() -> None:
    """A thousand were accepted and failed in the middle of the answer."""
    compiler().compile(GrammarSpec.json_schema(_optional(MAX_OPTIONAL)))
    with pytest.raises(InvalidParamsError, match=r"the object at # has 1000 optional properties, and at most 400"):
        compiler().compile(GrammarSpec.json_schema(_optional(1000)))
    inside = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, _optional(1000)]}}}
    with pytest.raises(InvalidParamsError, match=r"object at #/properties/a/anyOf/1 has 1000"):
        compiler().compile(GrammarSpec.json_schema(inside, bounded=False))
    needed = {**_optional(1000), "required": [f"p{i}" for i in range(600)], "additionalProperties": False}
    compiler().compile(GrammarSpec.json_schema(needed))


def test_masks_that_take_long_are_found_when_the_grammar_is_compiled() -> None:
    """With a clock that jumps by a second between them."""
    spec = GrammarSpec.regex("[ab][cd]e?")
    times = iter([0.0] * 20)

    def clock() -> float:
        return next(times, 1.0)

    for count in range(40):
        times = iter([0.0] * count)
        try:
            GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=shared_readers(), clock=clock).compile(spec)
        except InvalidParamsError as error:
            assert "ms of processor time per token to follow, and 20 ms are possible" in error.what  # noqa: PT017
            return
    pytest.fail("no mask was timed")


@pytest.mark.parametrize(
    ("spec", "line", "reason"),
    [
        (GrammarSpec.json_schema({"type": "strnig"}), None, "Invalid type: strnig"),
        (
            GrammarSpec.json_schema({"properties": {"a": {"minimum": "x"}}}),
            None,
            "expected a number for 'minimum', got \"x\"",
        ),
        (
            GrammarSpec.json_schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            None,
            "oneOf is not supported where its schemas overlap; use anyOf",
        ),
        (GrammarSpec.json_schema({"$ref": "#/$defs/none"}), None, 'the $ref "#/$defs/none" leads nowhere'),
        (
            GrammarSpec.json_schema({"type": "string", "pattern": "^[a-z]$", "minLength": 9}),
            None,
            "no text fits all of its patterns and lengths",
        ),
        (GrammarSpec.json_schema({"$ref": "#"}), None, "it allows no answer"),
        (GrammarSpec.json_schema({"enum": []}), None, "nothing fits it: anyOf is empty"),
        (
            GrammarSpec.json_schema({"type": "string", "pattern": "(a"}),
            None,
            "the regular expression is not valid: unclosed group",
        ),
        (
            GrammarSpec.json_schema('{"not":' * 3000 + "{}" + "}" * 3000),
            None,
            "it is nested too deeply",
        ),
        (GrammarSpec.regex("(a"), None, "the regular expression is not valid: unclosed group"),
        (GrammarSpec.regex(r"\bfoo"), None, "look-around and anchors within a regular expression are not supported"),
        (GrammarSpec.regex(r"[^\s\S]"), None, "it allows no answer"),
        (GrammarSpec.grammar('start: a b\na: "x"\nb: %json {"type": "strnig"}'), 3, "Invalid type: strnig"),
        (GrammarSpec.grammar("start: nobody"), 1, 'there is no rule "nobody"'),
        (GrammarSpec.grammar('root ::= "a" | b'), None, "Rule 'b' not found"),
        (GrammarSpec.grammar("start: <|nope|>"), 1, 'the model\'s vocabulary has no special token "<|nope|>"'),
    ],
)
def test_reasons_are_plain_and_name_what_was_sent(spec: GrammarSpec, line: int | None, reason: str) -> None:
    """Neither llguidance's own names and advice nor the source that it shows."""
    with pytest.raises(InvalidParamsError) as caught:
        compiler().compile(spec.named("response_format.regex"))
    assert caught.value.where == "response_format.regex"
    assert caught.value.what == "cannot be used: " + (f"line {line}: " if line else "") + reason


def test_lines_may_have_names_of_their_own() -> None:
    spec = GrammarSpec.grammar('start: a b\na: "x"\nb: %json {"type": "strnig"}').named("tools", "tools", "tools[4]")
    with pytest.raises(InvalidParamsError) as caught:
        compiler().compile(spec)
    assert str(caught.value) == "tools[4]: cannot be used: Invalid type: strnig"


def test_a_refusal_is_told_to_all_who_wait_for_it_by_their_own_names() -> None:
    shared, found = compiler(), []

    def ask(name: str) -> None:
        try:
            shared.compile(GrammarSpec.regex("(a").named(name))
        except InvalidParamsError as error:
            found.append(error.where)

    threads = [Thread(target=ask, args=(f"field {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == [f"field {i}" for i in range(4)]


def test_another_grammar_does_not_wait() -> None:
    """Only one grammar was compiled at a time."""
    inside, done = Event(), Event()

    def clock() -> float:
        if current_thread() is slow:
            inside.set()
            assert done.wait(10)
        return 0.0

    shared = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=shared_readers(), clock=clock)
    slow = Thread(target=lambda: shared.compile(GrammarSpec.regex("b+")))
    slow.start()
    assert inside.wait(10)
    assert shared.compile(GrammarSpec.regex("a+")).shortest == 1
    done.set()
    slow.join()


def test_what_is_known_is_found_while_another_grammar_compiles() -> None:
    """The engine's step looks there."""
    inside, done = Event(), Event()

    def clock() -> float:
        if slow.is_alive():
            inside.set()
            assert done.wait(10)
        return 0.0

    shared = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=shared_readers(), clock=clock)
    slow = Thread(target=lambda: shared.compile(GrammarSpec.regex("b+")))
    known = shared.compile(GrammarSpec.regex("a+"))
    slow.start()
    assert inside.wait(10)
    assert shared.compile(GrammarSpec.regex("a+")) is known
    done.set()
    slow.join()


def test_a_choice_of_thousands() -> None:
    spec = GrammarSpec.choice([f"n{i}" for i in range(4096)])
    assert next_texts(state(spec, "n409")) == {"END", *"012345"}
    assert next_texts(state(GrammarSpec.choice(['a"\\', "é"]), 'a"')) == {"\\"}


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"\d", set("0123456789")),
        (r"[\dx]", set("0123456789x")),
        (r"a/b", {"a"}),
        (r"\\d", {"\\"}),
    ],
)
def test_digits_of_a_regular_expression_are_0_to_9(pattern: str, allowed: set[str]) -> None:
    """They were those of all scripts, and a date came out in one that nobody reads."""
    assert {text[:1] for text in next_texts(state(GrammarSpec.regex(pattern)))} == allowed
    assert state(GrammarSpec.regex(r"\w"), "é").accepting


def test_gbnf_and_lark_are_both_grammars() -> None:
    for source in ('root ::= "a" | "b"', 'start: "a" | "b"'):
        assert next_texts(state(GrammarSpec.grammar(source))) == {"a", "b"}


def test_a_text_is_spelled_with_the_fewest_tokens() -> None:
    vocabulary = GrammarVocabulary(TOKENIZER, VOCAB_SIZE, EOS)
    spelled = vocabulary.spell(b'{"name":""}') or ()
    assert [TOKENIZER.token_bytes(i) for i in spelled] == [b'{"', b"name", b'":"', b'"}']
    assert vocabulary.spell(b"") == ()
    assert EOS[0] not in (vocabulary.spell(b"<end>") or ())


def test_the_tokenizer_s_own_tokens_are_taken_unless_they_add_bytes() -> None:
    class Prefixing(type(TOKENIZER)):  # type: ignore[misc]
        def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
            return super().encode(" " + text)

    assert GrammarVocabulary(TOKENIZER, VOCAB_SIZE, EOS).encode(b"abab") == TOKENIZER.encode("abab")
    assert GrammarVocabulary(Prefixing(), VOCAB_SIZE, EOS).encode(b"abab") == TOKENIZER.encode("abab")


def test_a_text_that_is_cut_within_a_character_is_spelled_as_the_tokenizer_spells() -> None:
    """It was spelled with the fewest tokens, all of it, and so was what an answer had to say."""

    class Letters(type(TOKENIZER)):  # type: ignore[misc]
        def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
            return list(text.encode())

    vocabulary = GrammarVocabulary(Letters(), VOCAB_SIZE, EOS)
    emoji = "🦄".encode()
    for data in (b"ab" + emoji[:3], b"ab" + emoji[:1], b"ab\xe0", emoji[2:] + b"ab", emoji[1:] + b"ab\xc3", emoji[1:2]):
        assert vocabulary.encode(data) == list(data)
    assert vocabulary.encode(b"\xffab") == [0xFF, *TOKENIZER.encode("ab")]  # no text: the fewest


def test_without_an_end_of_sequence_token_texts_end_by_themselves() -> None:
    compiled = GrammarCompiler(TOKENIZER, VOCAB_SIZE, (), readers=shared_readers()).compile(GrammarSpec.regex("a"))
    matcher = compiled.matcher.deep_copy()
    assert matcher.consume_token(ord("a"))
    assert matcher.is_stopped()


def test_a_vocabulary_that_is_refused_stops_grammars_not_the_warm_up() -> None:
    class Broken(TinyTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            raise ValueError("no such token")

    ours = GrammarCompiler(Broken(), VOCAB_SIZE, EOS, readers=shared_readers())
    ours.warm_up()
    with pytest.raises(ValueError, match="no such token"):
        ours.compile(GrammarSpec.choice(["a", "b"]))
