"""From a GrammarSpec to matchers, once per grammar and model."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from time import thread_time
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from slipstream.errors import InvalidParamsError
from slipstream.lean import dataclass
from slipstream.sampling.grammar.bounds import bound_schema, too_many_optional
from slipstream.sampling.grammar.llguidance_calls import new_matcher
from slipstream.sampling.grammar.readers import GrammarReaders, GrammarTooCostly
from slipstream.sampling.grammar.reasons import plain_reason
from slipstream.sampling.grammar.spec import GrammarSpec

if TYPE_CHECKING:
    import llguidance

    from slipstream.sampling.grammar.closing import Style
    from slipstream.sampling.grammar.vocabulary import GrammarVocabulary, TokenBytes

MAX_CACHED = 128  # compiled grammars kept
MAX_COMPILE_SECONDS = 2.0  # of processor time, for the grammar, the first masks and the search for the shortest answer
MAX_MASK_SECONDS = 0.02  # on average over the first masks
_MASKS_TRIED, _MASKS_WALKED = 32, 8
_HARMLESS = ("json_object", "choice")  # kinds whose reading takes time in proportion to their size

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
    """Compiles grammars for one model; keeps the last ones, and those that somebody else keeps. Threads may share it,
    and none waits for a grammar that another one compiles, unless it is the same.

    The model's vocabulary is prepared at the first call, which takes from a tenth of a second to some seconds by its
    size, and a grammar takes milliseconds: call it in another thread than the one that steps the engine. Before a
    grammar is read here, a process of `readers` does, which can be stopped.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        readers: GrammarReaders | None = None,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._clock = clock
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._readers = readers
        self._lock = Lock()  # of what is kept, never held for long: the engine's steps look there
        self._preparing = Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._in_use: WeakValueDictionary[GrammarSpec, CompiledGrammar] = WeakValueDictionary()
        self._under_way: dict[GrammarSpec, Future[CompiledGrammar]] = {}

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises InvalidParamsError, with the reason, for a source that is no grammar, allows no answer, or is too
        large or slow."""
        with self._lock:
            found = self._known(spec)
            if found is not None:
                return found
            others = self._under_way.get(spec)
            if others is None:
                own = self._under_way[spec] = Future()
        if others is not None:
            try:
                return others.result()
            except InvalidParamsError as error:
                raise InvalidParamsError(error.what, where=spec.name_of(), fix=error.fix) from error
        try:
            compiled = self._compile(spec)
        except BaseException as error:
            with self._lock:
                del self._under_way[spec]
            own.set_exception(error)
            raise
        with self._lock:
            self._keep(compiled)
            del self._under_way[spec]
        own.set_result(compiled)
        return compiled

    def _known(self, spec: GrammarSpec) -> CompiledGrammar | None:
        found = self._in_use.get(spec)
        if found is not None and spec in self._compiled:
            self._compiled.move_to_end(spec)
        return found

    def _keep(self, compiled: CompiledGrammar) -> None:
        self._compiled[compiled.spec] = self._in_use[compiled.spec] = compiled
        if len(self._compiled) > MAX_CACHED:
            self._compiled.popitem(last=False)

    def _prepare(self) -> tuple[GrammarVocabulary, GrammarReaders]:
        from slipstream.sampling.grammar.vocabulary import GrammarVocabulary

        with self._preparing:
            if self._readers is None:
                special = {*self._tokenizer.special_ids, *self._eos_token_ids}
                names = {i: self._tokenizer.token_bytes(i) for i in special if i < self._vocab_size}
                self._readers = GrammarReaders(self._vocab_size, names)
            if self._vocabulary is None:
                self._readers.start()
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
            return self._vocabulary, self._readers

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        from slipstream.sampling.grammar.closing import shortest_completion

        source = grammar_source(spec)
        vocabulary, readers = self._prepare()
        if spec.kind not in _HARMLESS:
            try:
                wrong = readers.read(source)
            except GrammarTooCostly as error:
                raise refusal(spec, f"{error}; simplify it") from error
            if wrong:
                raise refusal(spec, wrong)
        started = self._clock()
        matcher = new_matcher(vocabulary.tokens, source)
        if matcher.is_error():
            raise refusal(spec, matcher.get_error())
        byte_matcher = new_matcher(vocabulary.single_bytes, source)
        style = _style(spec)
        end = started + MAX_COMPILE_SECONDS
        shortest = None
        if not byte_matcher.is_error():
            shortest = shortest_completion(byte_matcher, style=style, out_of_time=lambda: self._clock() > end)
        spelled = None if shortest is None else vocabulary.spell(shortest)
        self._try(spec, matcher.deep_copy(), spelled)
        seconds = self._clock() - started
        if seconds > MAX_COMPILE_SECONDS:
            raise refusal(spec, f"it takes {seconds:.1f} s of processor time to read; simplify it")
        return CompiledGrammar(
            spec,
            vocabulary,
            matcher,
            None if byte_matcher.is_error() else byte_matcher,
            limit_digits=spec.bounded and spec.kind in ("json_schema", "json_object"),
            style=style,
            shortest=None if spelled is None else len(spelled),
        )

    def _try(self, spec: GrammarSpec, matcher: llguidance.LLMatcher, spelled: Sequence[int] | None) -> None:
        """Some limits are met only on the way through an answer: the shortest, and one that takes any way."""
        started = self._clock()
        masks = _mask_along(matcher.deep_copy(), spec, (spelled or ())[:_MASKS_TRIED], spelled or ())
        masks += _mask_along(matcher, spec, [None] * _MASKS_WALKED, (), self._eos_token_ids)
        seconds = (self._clock() - started) / masks
        if seconds > MAX_MASK_SECONDS:
            raise refusal(
                spec,
                f"it takes {1000 * seconds:.0f} ms of processor time per token to follow, and "
                f"{1000 * MAX_MASK_SECONDS:.0f} ms are possible; simplify it",
            )


def _mask_along(
    matcher: llguidance.LLMatcher,
    spec: GrammarSpec,
    way: Sequence[int | None],
    whole: Sequence[int],
    avoided: Sequence[int] = (),
) -> int:
    """Make the masks on the way, None being the token in the middle of those allowed and not avoided, then go to the
    end of `whole` without. The number of masks.

    Raises InvalidParamsError where nothing is allowed or a limit is met.
    """
    masks = 0
    for token in (*way, None):
        mask = matcher.compute_bitmask()
        masks += 1
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        if matcher.is_error() or (not len(allowed) and not matcher.is_accepting()):
            raise refusal(spec, matcher.get_error())
        if token is None:
            allowed = allowed[~np.isin(allowed, avoided)]
        if masks > len(way) or not len(allowed):
            break
        if not matcher.consume_token(int(allowed[len(allowed) // 2]) if token is None else token):
            break
        if matcher.is_stopped():
            break
    if not matcher.is_error() and not matcher.is_stopped():
        matcher.consume_tokens(list(whole[len(way) :]))
    if matcher.is_error():
        raise refusal(spec, matcher.get_error())
    return masks


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
        raise refusal(spec, str(error)) from error


def _read_schema(spec: GrammarSpec) -> Any:
    try:
        schema = json.loads(spec.source)
    except ValueError as error:
        raise refusal(spec, f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise refusal(spec, str(error)) from error
    if not isinstance(schema, (dict, bool)):
        raise refusal(spec, f"a schema is an object, not {type(schema).__name__}")
    return schema


def _schema_grammar(schema: Any, spec: GrammarSpec) -> str:
    from llguidance import LLMatcher

    try:
        wrong = too_many_optional(schema)
        if wrong is not None:
            raise refusal(spec, wrong)
        bounded = bound_schema(schema) if spec.bounded else schema
        built = LLMatcher.grammar_from_json_schema(
            json.dumps(bounded), overrides={"whitespace_flexible": False} if spec.bounded else {}
        )
        [grammar] = json.loads(built)["grammars"]
        return f"start: %json {json.dumps(grammar['json_schema'])}{UNFORCED}"
    except (ValueError, RecursionError) as error:
        raise refusal(spec, str(error)) from error


def refusal(spec: GrammarSpec, why: str) -> InvalidParamsError:
    """`why`: llguidance's message or our own reason; "" where nothing is allowed."""
    line, reason = plain_reason(why)
    where = spec.name_of(line)
    if line is not None and line <= spec.source.count("\n") + 1 and spec.kind == "grammar" and len(spec.fields) < 2:
        reason = f"line {line}: {reason}"
    return InvalidParamsError(f"cannot be used: {reason}", where=where)
