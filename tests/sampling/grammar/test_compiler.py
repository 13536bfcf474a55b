from __future__ import annotations

import weakref
from threading import Event, Thread

import numpy as np
import pytest

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.compiler import MAX_CACHED, MAX_COMPILE_SECONDS, GrammarCompiler
from slipstream.sampling.grammar.forced import WINDOW
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState
from slipstream.sampling.grammar.vocabulary import GrammarVocabulary
from tests.sampling.grammar.tiny_vocabulary import EOS, TOKENIZER, VOCAB_SIZE, compiler, next_texts, state, text_of

pytestmark = pytest.mark.fast


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
        (GrammarSpec.grammar("start: " + "|".join(f'"x{i}"' for i in range(11_000))), "11001 items"),
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
    times = iter([0.0, MAX_COMPILE_SECONDS + 1])
    slow = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, clock=lambda: next(times))
    with pytest.raises(InvalidParamsError, match=r"regex: cannot be used: it takes 3.0 s"):
        slow.compile(GrammarSpec.regex("a"))


def test_what_is_known_is_found_while_another_grammar_compiles() -> None:
    """The engine's step looks there."""
    inside, done = Event(), Event()

    def clock() -> float:
        if slow.is_alive():
            inside.set()
            assert done.wait(10)
        return 0.0

    shared = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, clock=clock)
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


def test_without_an_end_of_sequence_token_texts_end_by_themselves() -> None:
    compiled = GrammarCompiler(TOKENIZER, VOCAB_SIZE, ()).compile(GrammarSpec.regex("a"))
    matcher = compiled.matcher.deep_copy()
    assert matcher.consume_token(ord("a"))
    assert matcher.is_stopped()
