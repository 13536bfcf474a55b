"""From a GrammarSpec to matchers, once per grammar and model."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import thread_time
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from slipstream.errors import InvalidParamsError
from slipstream.sampling.grammar.bounds import bound_schema
from slipstream.sampling.grammar.spec import GrammarSpec

if TYPE_CHECKING:
    import llguidance

    from slipstream.sampling.grammar.closing import Style
    from slipstream.sampling.grammar.vocabulary import GrammarVocabulary, TokenBytes

MAX_CACHED = 128  # compiled grammars kept
MAX_COMPILE_SECONDS = 2.0  # of processor time, for the grammar, the first mask and the search for the shortest answer
# Where requests come from outside, a grammar must not take the machine's memory or the other requests' time.
_MAX_GRAMMAR_SIZE = 200_000
_MAX_LEXER_STATES = 100_000
_MAX_ITEMS_IN_ROW = 10_000  # alternatives open at one place: choices, optional properties

UNFORCED = '\n%llguidance {"no_forcing": true}\n'
"""Without it llguidance follows text that has no alternative to its end before every mask, in no bounded time."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CompiledGrammar:
    """A grammar at its start; copy the matchers, never advance them."""

    spec: GrammarSpec
    vocabulary: GrammarVocabulary
    matcher: llguidance.LLMatcher  # of the model's tokens
    byte_matcher: llguidance.LLMatcher | None  # None if the grammar names tokens, which have no bytes
    limit_digits: bool
    style: Style
    shortest: int | None  # tokens of the shortest answer found; None if none was


class GrammarCompiler:
    """Compiles grammars for one model; keeps the last ones, and those that somebody else keeps. Threads may share it.

    The model's vocabulary is prepared at the first call, which takes from a tenth of a second to some seconds by its
    size, and a grammar takes milliseconds: call it in another thread than the one that steps the engine.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._clock = clock
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._lock = Lock()  # of what is kept, never held for long: the engine's steps look there
        self._compiling = Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._in_use: WeakValueDictionary[GrammarSpec, CompiledGrammar] = WeakValueDictionary()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises InvalidParamsError, with the reason, for a source that is no grammar, allows no answer, or is too
        large or slow."""
        found = self._known(spec)
        if found is None:
            with self._compiling:
                found = self._known(spec) or self._keep(self._compile(spec))
        return found

    def _known(self, spec: GrammarSpec) -> CompiledGrammar | None:
        with self._lock:
            found = self._in_use.get(spec)
            if found is not None and spec in self._compiled:
                self._compiled.move_to_end(spec)
            return found

    def _keep(self, compiled: CompiledGrammar) -> CompiledGrammar:
        with self._lock:
            self._compiled[compiled.spec] = self._in_use[compiled.spec] = compiled
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
            return compiled

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        import llguidance

        from slipstream.sampling.grammar.closing import shortest_completion
        from slipstream.sampling.grammar.vocabulary import GrammarVocabulary

        source = grammar_source(spec)
        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        limits = llguidance.LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE,
            max_lexer_states=_MAX_LEXER_STATES,
            max_items_in_row=_MAX_ITEMS_IN_ROW,
            verbose_errors=False,
        )
        started = self._clock()
        matcher = llguidance.LLMatcher(self._vocabulary.tokens, source, log_level=0, limits=limits)
        first = matcher.deep_copy()
        allowed = 0 if first.is_error() else int.from_bytes(first.compute_bitmask(), "little")
        if first.is_error():
            raise _refusal(spec, first.get_error() or "it allows no answer")
        byte_matcher = llguidance.LLMatcher(self._vocabulary.single_bytes, source, log_level=0, limits=limits)
        style = _style(spec)
        shortest = None if byte_matcher.is_error() else shortest_completion(byte_matcher, style=style)
        spelled = None if shortest is None else self._vocabulary.spell(shortest)
        # Some limits are met only by reading an answer: the shortest, or where none was found any token.
        first.consume_tokens(list(spelled) if spelled else [(allowed & -allowed).bit_length() - 1] if allowed else [])
        if first.is_error():
            raise _refusal(spec, first.get_error())
        seconds = self._clock() - started
        if seconds > MAX_COMPILE_SECONDS:
            raise _refusal(spec, f"it takes {seconds:.1f} s of processor time to read; simplify it")
        return CompiledGrammar(
            spec,
            self._vocabulary,
            matcher,
            None if byte_matcher.is_error() else byte_matcher,
            limit_digits=spec.bounded and spec.kind in ("json_schema", "json_object"),
            style=style,
            shortest=None if spelled is None else len(spelled),
        )


def _style(spec: GrammarSpec) -> Style:
    if spec.kind in ("json_schema", "json_object"):
        return "json"
    return "mixed" if spec.kind == "grammar" and "%json" in spec.source else "any"


def grammar_source(spec: GrammarSpec) -> str:
    """What llguidance reads. Raises InvalidParamsError for a source that is not even well-formed."""
    from llguidance import LLMatcher, grammar_from

    if spec.kind == "json_object":
        return _schema_grammar({"type": "object"}, spec)
    if spec.kind == "json_schema":
        return _schema_grammar(_read_schema(spec), spec)
    if spec.kind == "regex":
        [grammar] = json.loads(LLMatcher.grammar_from_regex(spec.source))["grammars"]
        return str(grammar["lark_grammar"]) + UNFORCED
    try:
        if spec.kind == "choice":  # as one terminal: a rule of thousands of them is over llguidance's limits
            return (
                "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(each) for each in json.loads(spec.source)) + UNFORCED
            )
        return grammar_from("grammar", spec.source) + UNFORCED
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


def _schema_grammar(schema: Any, spec: GrammarSpec) -> str:
    from llguidance import LLMatcher

    try:
        bounded = bound_schema(schema) if spec.bounded else schema
        built = LLMatcher.grammar_from_json_schema(
            json.dumps(bounded), overrides={"whitespace_flexible": False} if spec.bounded else {}
        )
        [grammar] = json.loads(built)["grammars"]
        return f"start: %json {json.dumps(grammar['json_schema'])}{UNFORCED}"
    except (ValueError, RecursionError) as error:
        raise _refusal(spec, str(error)) from error


def _refusal(spec: GrammarSpec, why: str) -> InvalidParamsError:
    return InvalidParamsError(f"cannot be used: {' '.join(why.split())[:500]}", where=spec.kind)
