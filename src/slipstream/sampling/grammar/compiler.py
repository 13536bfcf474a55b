"""From a GrammarSpec to matchers, once per grammar and model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from time import monotonic, thread_time
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from slipstream.lean import dataclass
from slipstream.sampling.grammar.llguidance_calls import new_matcher
from slipstream.sampling.grammar.readers import GrammarReaders, GrammarTooCostly
from slipstream.sampling.grammar.refusals import GrammarRefused, Refusal, Refusals
from slipstream.sampling.grammar.sources import grammar_source
from slipstream.sampling.grammar.spec import GrammarSpec

if TYPE_CHECKING:
    import llguidance

    from slipstream.sampling.grammar.closing import Style
    from slipstream.sampling.grammar.merging import Step
    from slipstream.sampling.grammar.vocabulary import GrammarVocabulary, TokenBytes

MAX_CACHED = 128  # compiled grammars kept
MAX_COMPILE_SECONDS = 2.0  # of processor time, for the grammar, the first masks and the search for the shortest answer
MAX_MASK_SECONDS = 0.02  # on average over the first masks
_MASKS_TRIED, _MASKS_WALKED = 32, 8
_HARMLESS = ("json_object", "choice")  # kinds whose reading takes time in proportion to their size


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
    steps: tuple[Step, ...] = ()  # what numbers have to be multiples of


class GrammarCompiler:
    """Compiles grammars for one model; keeps the last ones, and those that somebody else keeps, and remembers which it
    refused. Threads may share it, and none waits for a grammar that another one compiles, unless it is the same.

    The model's vocabulary is prepared by `warm_up` or at the first call, which takes from a tenth of a second to some
    seconds by its size and holds the interpreter for most of that, and a grammar takes milliseconds: call it in another
    thread than the one that steps the engine. Before a grammar is read here, a process of `readers` does, which can be
    stopped.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        readers: GrammarReaders | None = None,
        clock: Callable[[], float] = thread_time,
        now: Callable[[], float] = monotonic,
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
        self._under_way: dict[GrammarSpec, Future[CompiledGrammar | Refusal]] = {}
        self._refused = Refusals(now)

    def warm_up(self) -> None:
        """Prepare the vocabulary, but start no process. One that is refused is left to the grammars that need it."""
        with self._preparing, suppress(ValueError):
            self._prepared_vocabulary()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises InvalidParamsError, with the reason, for a source that is no grammar, allows no answer, or is too
        large or slow; at once where the same grammar was refused before."""
        found = self._found_or_compiled(spec)
        if isinstance(found, Refusal):
            raise found.error(spec)
        return found

    def _found_or_compiled(self, spec: GrammarSpec) -> CompiledGrammar | Refusal:
        with self._lock:
            found = self._known(spec) or self._refused.find(spec)
            if found is not None:
                return found
            others = self._under_way.get(spec)
            if others is None:
                own = self._under_way[spec] = Future()
        if others is not None:
            return others.result()
        made: CompiledGrammar | Refusal
        try:
            made = self._compile(spec)
        except GrammarRefused as error:
            made = error.refusal
        except BaseException as error:
            with self._lock:
                del self._under_way[spec]
            own.set_exception(error)
            raise
        with self._lock:
            if isinstance(made, Refusal):
                self._refused.add(spec, made)
            else:
                self._keep(made)
            del self._under_way[spec]
        own.set_result(made)
        return made

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
        with self._preparing:
            if self._readers is None:
                special = {*self._tokenizer.special_ids, *self._eos_token_ids}
                names = {i: self._tokenizer.token_bytes(i) for i in special if i < self._vocab_size}
                self._readers = GrammarReaders(self._vocab_size, names)
            if self._vocabulary is None:
                self._readers.start()  # it gets ready meanwhile
            return self._prepared_vocabulary(), self._readers

    def _prepared_vocabulary(self) -> GrammarVocabulary:
        if self._vocabulary is None:
            from slipstream.sampling.grammar.vocabulary import GrammarVocabulary

            self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        return self._vocabulary

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        from slipstream.sampling.grammar.closing import shortest_completion

        source, steps = grammar_source(spec)
        vocabulary, readers = self._prepare()
        if spec.kind not in _HARMLESS:
            try:
                wrong = readers.read(source)
            except GrammarTooCostly as error:
                raise GrammarRefused(f"{error}; simplify it", measured=True) from error
            if wrong:
                raise GrammarRefused(wrong)
        started = self._clock()
        matcher = new_matcher(vocabulary.tokens, source)
        if matcher.is_error():
            raise GrammarRefused(matcher.get_error())
        byte_matcher = new_matcher(vocabulary.single_bytes, source)
        style = _style(spec)
        end = started + MAX_COMPILE_SECONDS
        shortest = None
        if not byte_matcher.is_error():
            shortest = shortest_completion(
                byte_matcher, style=style, steps=steps, out_of_time=lambda: self._clock() > end
            )
        spelled = None if shortest is None else vocabulary.spell(shortest)
        self._try(matcher.deep_copy(), spelled)
        seconds = self._clock() - started
        if seconds > MAX_COMPILE_SECONDS:
            raise GrammarRefused(f"it takes {seconds:.1f} s of processor time to read; simplify it", measured=True)
        return CompiledGrammar(
            spec,
            vocabulary,
            matcher,
            None if byte_matcher.is_error() else byte_matcher,
            limit_digits=spec.bounded and spec.kind in ("json_schema", "json_object"),
            style=style,
            shortest=None if spelled is None else len(spelled),
            steps=steps,
        )

    def _try(self, matcher: llguidance.LLMatcher, spelled: Sequence[int] | None) -> None:
        """Some limits are met only on the way through an answer: the shortest, and one that takes any way."""
        started = self._clock()
        masks = _mask_along(matcher.deep_copy(), (spelled or ())[:_MASKS_TRIED], spelled or ())
        masks += _mask_along(matcher, [None] * _MASKS_WALKED, (), self._eos_token_ids)
        seconds = (self._clock() - started) / masks
        if seconds > MAX_MASK_SECONDS:
            raise GrammarRefused(
                f"it takes {1000 * seconds:.0f} ms of processor time per token to follow, and "
                f"{1000 * MAX_MASK_SECONDS:.0f} ms are possible; simplify it",
                measured=True,
            )


def _mask_along(
    matcher: llguidance.LLMatcher,
    way: Sequence[int | None],
    whole: Sequence[int],
    avoided: Sequence[int] = (),
) -> int:
    """Make the masks on the way, None being the token in the middle of those allowed and not avoided, then go to the
    end of `whole` without. The number of masks.

    Raises GrammarRefused where nothing is allowed or a limit is met.
    """
    masks = 0
    for token in (*way, None):
        mask = matcher.compute_bitmask()
        masks += 1
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        if matcher.is_error() or (not len(allowed) and not matcher.is_accepting()):
            raise GrammarRefused(matcher.get_error())
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
        raise GrammarRefused(matcher.get_error())
    return masks


def _style(spec: GrammarSpec) -> Style:
    if spec.kind in ("json_schema", "json_object"):
        return "json"
    return "mixed" if spec.kind == "grammar" and "%json" in spec.source else "any"
