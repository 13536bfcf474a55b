from __future__ import annotations

import pytest

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.readers import GrammarReaders, GrammarTooCostly
from slipstream.sampling.grammar.refusals import MEASURED_HOLDS, GrammarRefused, Refusal, Refusals
from slipstream.sampling.grammar.spec import GrammarSpec
from tests.sampling.grammar.tiny_vocabulary import EOS, TOKENIZER, VOCAB_SIZE

pytestmark = pytest.mark.fast


class CountingReaders(GrammarReaders):
    """Says of every grammar what it was told to."""

    def __init__(self, answer: str | GrammarTooCostly) -> None:
        super().__init__(VOCAB_SIZE, {})
        self.answer = answer
        self.read_sources: list[str] = []

    def start(self) -> None:
        pass

    def read(self, source: str) -> str:
        self.read_sources.append(source)
        if isinstance(self.answer, GrammarTooCostly):
            raise self.answer
        return self.answer


def refuse(compiler: GrammarCompiler, spec: GrammarSpec) -> str:
    with pytest.raises(InvalidParamsError) as caught:
        compiler.compile(spec)
    return str(caught.value)


def test_a_refused_grammar_is_read_once() -> None:
    """A bad schema cost up to a second of processor time every time it came."""
    readers = CountingReaders('1(7): unknown name: "b"')
    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=readers)
    spec = GrammarSpec.grammar("start: b")
    assert refuse(compiler, spec) == 'grammar: cannot be used: line 1: there is no rule "b"'
    assert refuse(compiler, spec.named("guided_grammar")) == (
        'guided_grammar: cannot be used: line 1: there is no rule "b"'
    )
    assert refuse(compiler, spec.named("tools[3]", "x")) == 'tools[3]: cannot be used: there is no rule "b"'
    assert len(readers.read_sources) == 1
    refuse(compiler, GrammarSpec.grammar("start: b "))
    assert len(readers.read_sources) == 2


def test_a_refusal_for_the_time_it_took_is_tried_again_after_a_while() -> None:
    """The machine may have been busy."""
    now = [100.0]
    readers = CountingReaders(GrammarTooCostly("it takes more than 1 s of processor time to read"))
    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=readers, now=lambda: now[0])
    spec = GrammarSpec.regex("a+")
    for now[0] in (100.0, 101.0, 99.0 + MEASURED_HOLDS):
        assert "it takes more than 1 s of processor time to read" in refuse(compiler, spec)
    assert len(readers.read_sources) == 1
    now[0] = 100.0 + MEASURED_HOLDS
    refuse(compiler, spec)
    assert len(readers.read_sources) == 2
    readers.answer = ""
    now[0] += MEASURED_HOLDS
    assert compiler.compile(spec).spec == spec


def test_an_engine_that_cannot_read_grammars_is_no_refusal() -> None:
    class Broken(CountingReaders):
        def read(self, source: str) -> str:
            if not self.read_sources:
                self.read_sources.append(source)
                raise OSError("no process")
            return ""

    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE, EOS, readers=Broken(""))
    with pytest.raises(OSError, match="no process"):
        compiler.compile(GrammarSpec.regex("a+"))
    assert compiler.compile(GrammarSpec.regex("a+")).shortest == 1


def test_the_memory_is_bounded_and_keeps_what_comes_again() -> None:
    refusals = Refusals(lambda: 0.0, capacity=3)
    specs = [GrammarSpec.regex(f"a{i}") for i in range(5)]
    for spec in specs[:3]:
        refusals.add(spec, Refusal(None, spec.source))
    assert refusals.find(specs[0]) == Refusal(None, "a0")
    for spec in specs[3:]:
        refusals.add(spec, Refusal(None, spec.source))
    assert len(refusals) == 3
    assert [refusals.find(spec) is not None for spec in specs] == [True, False, False, True, True]


@pytest.mark.parametrize(
    "other",
    [
        GrammarSpec.json_schema('{"type": "x"} '),
        GrammarSpec.json_schema('{"type": "x"}', bounded=False),
        GrammarSpec.regex('{"type": "x"}'),
    ],
)
def test_only_the_same_grammar_is_the_same(other: GrammarSpec) -> None:
    refusals = Refusals(lambda: 0.0)
    spec = GrammarSpec.json_schema('{"type": "x"}')
    refusals.add(spec, Refusal(None, "no"))
    assert refusals.find(spec.named("field")) == Refusal(None, "no")
    assert refusals.find(other) is None


def test_text_that_is_no_unicode_is_refused_and_remembered_too() -> None:
    refusals = Refusals(lambda: 0.0)
    spec = GrammarSpec.regex("\ud800")
    refusals.add(spec, Refusal(None, "no"))
    assert refusals.find(spec) is not None


def test_reasons_are_kept_short() -> None:
    assert len(GrammarRefused("x" * 10_000).refusal.reason) < 400
