"""From a GrammarSpec to matchers, once per grammar and model."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.bounds import bound_schema
from slipstream.sampling.grammar.spec import GrammarSpec

if TYPE_CHECKING:
    import llguidance

    from slipstream.sampling.grammar.closing import Style
    from slipstream.sampling.grammar.vocabulary import GrammarVocabulary, TokenBytes

MAX_CACHED = 128  # compiled grammars kept
# Where requests come from outside, a grammar must not take the machine's memory or the other requests' time.
_MAX_GRAMMAR_SIZE = 200_000
_MAX_LEXER_STATES = 100_000


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its start; copy the matchers, never advance them."""

    spec: GrammarSpec
    vocabulary: GrammarVocabulary
    matcher: llguidance.LLMatcher  # of the model's tokens
    byte_matcher: llguidance.LLMatcher | None  # None if the grammar names tokens, which have no bytes
    limit_digits: bool

    @property
    def style(self) -> Style:
        if self.spec.kind in ("json_schema", "json_object"):
            return "json"
        return "mixed" if self.spec.kind == "grammar" and "%json" in self.spec.source else "any"


class GrammarCompiler:
    """Compiles grammars for one model and keeps the last ones. Threads may share it.

    The model's vocabulary is prepared at the first call, which takes from a tenth of a second to some seconds by its
    size, and a grammar takes milliseconds: call it in another thread than the one that steps the engine.
    """

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._lock = Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises InvalidParamsError, with the reason, for a source that is no grammar or one that is too large."""
        with self._lock:
            found = self._compiled.get(spec)
            if found is None:
                found = self._compiled[spec] = self._compile(spec)
            self._compiled.move_to_end(spec)
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
            return found

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        import llguidance

        from slipstream.sampling.grammar.vocabulary import GrammarVocabulary

        source = grammar_source(spec)
        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        limits = llguidance.LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
        )
        matcher = llguidance.LLMatcher(self._vocabulary.tokens, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(spec, matcher.get_error())
        byte_matcher = llguidance.LLMatcher(self._vocabulary.single_bytes, source, log_level=0, limits=limits)
        return CompiledGrammar(
            spec,
            self._vocabulary,
            matcher,
            None if byte_matcher.is_error() else byte_matcher,
            limit_digits=spec.bounded and spec.kind in ("json_schema", "json_object"),
        )


def grammar_source(spec: GrammarSpec) -> str:
    """What llguidance reads. Raises InvalidParamsError for a source that is not even well-formed."""
    from llguidance import LLMatcher, grammar_from

    if spec.kind == "json_object":
        return _schema_grammar(LLMatcher.grammar_from_json_schema, {"type": "object"}, spec)
    if spec.kind == "json_schema":
        return _schema_grammar(LLMatcher.grammar_from_json_schema, _read_schema(spec), spec)
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.source)
    try:
        return grammar_from("choice" if spec.kind == "choice" else "grammar", spec.source)
    except (ValueError, TypeError, RecursionError) as error:
        raise _refusal(spec, str(error)) from error


def _read_schema(spec: GrammarSpec) -> Any:
    try:
        schema = json.loads(spec.source)
    except (ValueError, RecursionError) as error:
        raise _refusal(spec, f"it is not JSON: {error}") from error
    if not isinstance(schema, (dict, bool)):
        raise _refusal(spec, f"a schema is an object, not {type(schema).__name__}")
    return schema


def _schema_grammar(build: Callable[..., str], schema: Any, spec: GrammarSpec) -> str:
    overrides = {"whitespace_flexible": False} if spec.bounded else {}
    try:
        bounded = bound_schema(schema) if spec.bounded else schema
        return build(json.dumps(bounded), overrides=overrides)
    except (ValueError, RecursionError) as error:
        raise _refusal(spec, str(error)) from error


def _refusal(spec: GrammarSpec, why: str) -> InvalidParamsError:
    return InvalidParamsError(f"cannot be used: {' '.join(why.split())[:500]}", where=spec.kind)
