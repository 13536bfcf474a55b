"""With a vocabulary that splits characters over tokens, and has enough of them to meet limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.engine.loading import engine_options
from slipstream.engine.model_tokenizer import load_tokenizer
from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.compiler import GrammarCompiler
from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.grammar.state import GrammarState
from slipstream.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

JAPANESE = "漢字仮名交じり文は日本語の表記体系であり🦄"
LONG = "indistinguishable, naïve qwop counterrevolutionaries, counter" + "🦄🦄 end of text"


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(engine_options(str(smollm2_path), {}))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


@pytest.mark.parametrize(
    ("spec", "answer", "drafted"),
    [
        (GrammarSpec.json_schema({"enum": ["😀", "😁"]}), '"😁"', 1),
        (GrammarSpec.json_schema({"enum": ["😀😁", "🦄x"]}), '"😀😁"', 5),
        (GrammarSpec.choice(["say 🦄 a", "say 🦖 b"]), "say 🦖 b", 1),
        (
            GrammarSpec.json_schema({"const": "漢字仮名交じり文は日本語の表記体系であり🦄"}),
            '"漢字仮名交じり文は日本語の表記体系であり🦄"',
            30,
        ),
        (GrammarSpec.choice([LONG]), LONG, 20),
    ],
)
def test_a_forced_text_is_spelled_as_the_tokenizer_spells_it(
    tokenizer: Tokenizer, compiler: GrammarCompiler, spec: GrammarSpec, answer: str, drafted: int
) -> None:
    """From every token of the answer on, within a character too; at least `drafted` tokens of it are foreseen."""
    ids = tokenizer.encode(answer, add_special_tokens=False)
    state = GrammarState(compiler.compile(spec))
    foreseen = 0
    for at, token in enumerate(ids):
        forced = state.forced_tokens()
        assert forced == ids[at : at + len(forced)]
        foreseen += bool(forced)
        state.advance([token])
    assert state.accepting
    assert foreseen >= drafted


def test_limits_that_are_met_on_the_way_are_found_when_the_grammar_is_compiled(compiler: GrammarCompiler) -> None:
    """The shortest answer, of no token, does not meet them: an answer failed at its second token."""
    names = [f"r{i}" for i in range(3000)]
    source = "\n".join([f"start: {' '.join(f'{name}?' for name in names)}", *(f'{name}: "{name}"' for name in names)])
    with pytest.raises(InvalidParamsError, match="cannot be used: too many alternatives at one place; simplify it"):
        compiler.compile(GrammarSpec.grammar(source))
