"""One answer's way through its grammar: the mask of the next token, and the way home when tokens run out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import GrammarError
from slipstream.sampling.filters import top_ranked
from slipstream.sampling.grammar.bounds import MAX_DIGITS, DigitRun
from slipstream.sampling.grammar.closing import MAX_VISITS, shortest_completion
from slipstream.sampling.grammar.compiler import CompiledGrammar
from slipstream.sampling.grammar.forced import WINDOW, forced_tokens
from slipstream.sampling.grammar.reasons import plain_reason

if TYPE_CHECKING:
    import llguidance

    from slipstream.sampling.sampler import RowContext

MAX_SEARCH_SECONDS = 0.1  # of processor time, for one ending
TESTED = 8  # likeliest tokens tried while the budget is tight
MIN_GROWTH = 32  # tokens that the shortest ending is expected to grow by with one token, at most
MIN_WATCHED = 128
FIT_VISITS = 200
_LONGEST_NUMBER = 64  # tokens looked back for its beginning
SECONDS_AT_START, SECONDS_PER_TOKEN = 0.5, 0.02  # of processor time that a request's masks may take


class GrammarState:
    """Follows the output tokens of one request.

    The budget: near its end the shortest ending known is compared with the tokens left, at every token. Once they come
    close, a token is allowed only if an ending that fits is known behind it; the first token of the known ending always
    is, so a text that could be ended in time is ended in time. What could break this is one token that makes the
    shortest ending longer by more than `growth`, max(32, twice the shortest answer), or an ending longer than
    max(128, 4 growth) tokens when the watch begins.

    The time: masks are made inside a step that other requests wait for, so a grammar whose masks together take longer
    than half a second and 20 ms per token, of this thread's processor time (`clock`), fails its request. Endings are
    looked for with half of that at most: without an ending the answer is cut off, which is better than an error.

    name: what errors call the grammar; None: its kind.
    """

    def __init__(
        self, compiled: CompiledGrammar, *, name: str | None = None, clock: Callable[[], float] = thread_time
    ) -> None:
        self.compiled = compiled
        self._name = name or compiled.spec.kind
        self._clock = clock
        self._seconds = self._search_seconds = 0.0
        self._vocabulary = compiled.vocabulary
        self._matcher = compiled.matcher.deep_copy()
        self._tokens: list[int] = []
        self._bytes = compiled.byte_matcher.deep_copy() if compiled.byte_matcher is not None else None
        self._num_in_bytes = 0  # of the tokens, how many the byte matcher has seen
        self._digits = DigitRun()
        self._num_in_digits = 0
        self._kept: tuple[int, bytes] | None = None  # a known ending, and how many tokens there were then

    @property
    def finished(self) -> bool:
        """The text is complete and nothing can be added to it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def accepting(self) -> bool:
        """The text may end here."""
        return self._matcher.is_accepting()

    def forced_tokens(self) -> list[int]:
        """Tokens that spell what the grammar leaves no choice about, from here on; [] where there is a choice.

        At most 64 bytes of it. The mask allows the first of them only, so that such texts are spelled as usual.
        """
        state = self._byte_state()
        return [] if state is None or self.finished else forced_tokens(state.deep_copy(), self._vocabulary)

    def sync(self, output: Sequence[int]) -> None:
        """Go to the state behind `output`: forwards, back, or from the start, whatever is nearest.

        Raises GrammarError if the grammar does not accept it.
        """
        if self._tokens != list(output[: len(self._tokens)]):
            same = 0
            while same < min(len(self._tokens), len(output)) and self._tokens[same] == output[same]:
                same += 1
            self._go_back(same)
        self.advance(output[len(self._tokens) :])

    def advance(self, tokens: Sequence[int]) -> None:
        """Take sampled tokens; end-of-sequence too. Raises GrammarError if the grammar does not allow one."""
        for token in tokens:
            if not (self._matcher.consume_token(token) if not self._matcher.is_stopped() else self._ends(token)):
                why = plain_reason(self._matcher.get_error())[1] if self._matcher.is_error() else "it is complete"
                raise GrammarError(
                    f"the grammar does not allow token {token} at output {len(self._tokens)}: {why}", where=self._name
                )
            self._tokens.append(token)

    def allowed(self, scores: NDArray[np.floating], context: RowContext, *, position: int) -> NDArray[np.bool_]:
        """The mask for the token at absolute index `position`, bool [V]; see `mask`."""
        params = context.params
        left = sys.maxsize if context.max_tokens is None else context.max_tokens
        return self.mask(
            scores,
            remaining=left - (position - context.num_prompt_tokens),
            enough=1 if params.greedy else TESTED,
            keep_eos=not params.ignore_eos,
        )

    def mask(
        self, scores: NDArray[np.floating], *, remaining: int, enough: int = TESTED, keep_eos: bool = True
    ) -> NDArray[np.bool_]:
        """Which tokens may come next, bool [V].

        scores: float [V], only read to choose which tokens are tried while the budget is tight. remaining: output
        tokens left, >= 1, the next one included. enough: of the tokens tried, likeliest first, how many have to fit.
        `keep_eos` false: end of sequence only where nothing else is left.
        Raises GrammarError if the grammar has run into llguidance's limits, or takes too much time.
        """
        started = self._clock()
        allowed = self._mask(scores, remaining, enough, keep_eos)
        self._seconds += self._clock() - started
        granted = self._granted()
        if self._seconds > granted:
            raise GrammarError(
                f"following the grammar took {self._seconds:.2f} s of processor time by output {len(self._tokens)}, "
                f"and {granted:.2f} s are granted.",
                where=self._name,
                fix="Simplify it.",
            )
        return allowed

    def _mask(self, scores: NDArray[np.floating], remaining: int, enough: int, keep_eos: bool) -> NDArray[np.bool_]:
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed: NDArray[np.bool_] = bits[: len(scores)].view(np.bool_)
        if self._matcher.is_error():
            why = plain_reason(self._matcher.get_error())[1]
            raise GrammarError(
                f"the grammar cannot be followed beyond output {len(self._tokens)}: {why}.", where=self._name
            )
        if len(allowed) < len(scores):
            allowed = np.concatenate([allowed, np.zeros(len(scores) - len(allowed), np.bool_)])
        # All tokens of a text without alternative are beginnings of it.
        forced = self.forced_tokens() if np.count_nonzero(allowed) <= WINDOW else []
        if forced and allowed[forced[0]]:
            allowed = np.zeros_like(allowed)
            allowed[forced[0]] = True
        if not keep_eos:
            allowed = _without(allowed, list(self._vocabulary.eos_token_ids))
        if self.compiled.limit_digits and self._digit_run() >= MAX_DIGITS:
            allowed = _without(allowed, self._vocabulary.begins_with_digit)
        return self._within_budget(allowed, scores, remaining, enough)

    # ---- the budget ----

    def _within_budget(
        self, allowed: NDArray[np.bool_], scores: NDArray[np.floating], remaining: int, enough: int
    ) -> NDArray[np.bool_]:
        growth = self._growth_limit()
        if growth is None or remaining > max(MIN_WATCHED, 4 * growth):
            return allowed
        ending = self._known_ending(remaining)
        if ending is None or remaining - 1 - len(ending[1]) >= growth:
            return allowed
        text, spelled = ending
        ids = np.flatnonzero(allowed)
        tried = ids[top_ranked(scores[ids].astype(np.float64), TESTED)].tolist()
        kept = list(islice((token for token in tried if self._fits(token, text, remaining - 1)), enough))
        kept += spelled[:1] or [token for token in self._vocabulary.eos_token_ids if allowed[token]]
        result = np.zeros_like(allowed)
        result[kept] = True
        return result if kept else allowed

    def _growth_limit(self) -> int | None:
        """None if no ending is looked for, or none of the shortest answer is known."""
        shortest = self.compiled.shortest if self.compiled.spec.closing else None
        return None if shortest is None else max(MIN_GROWTH, 2 * shortest)

    def _known_ending(self, remaining: int) -> tuple[bytes, tuple[int, ...]] | None:
        """An ending of at most `remaining` tokens, as text and spelled; None if none is known."""
        state = self._byte_state()
        found = None if state is None else self._spelled(self._search(state))
        if found is None or len(found[1]) > remaining:  # fewer bytes can be more tokens: what was known still holds
            found = self._rest_of_kept()
        if found is None or len(found[1]) > remaining:
            return None
        self._kept = len(self._tokens), found[0]
        return found

    def _rest_of_kept(self) -> tuple[bytes, tuple[int, ...]] | None:
        if self._kept is None:
            return None
        known, text = self._kept
        added = b"".join([self._vocabulary.bytes[token] for token in self._tokens[known:]])
        return self._spelled(text[len(added) :]) if text.startswith(added) else None

    def _fits(self, token: int, ending: bytes, remaining: int) -> bool:
        """Whether an ending of at most `remaining` tokens is known behind `token`; `ending` is one known before it."""
        if token in self._vocabulary.eos_token_ids:
            return True
        data = self._vocabulary.bytes[token]
        if ending.startswith(data):
            spelled = self._spelled(ending[len(data) :])
            if spelled is not None and len(spelled[1]) <= remaining:
                return True
        state = self._byte_state()
        if state is None:
            return False
        state = state.deep_copy()
        if not state.consume_tokens(list(data)):
            return False
        for found in self._guesses(state, ending, data):
            spelled = self._spelled(found)
            if spelled is not None and len(spelled[1]) <= remaining:
                return True
        return False

    def _guesses(self, state: llguidance.LLMatcher, ending: bytes, data: bytes) -> Iterator[bytes | None]:
        """Behind `data`: the ending from before where it still is one, as behind a word of a text, then what a search
        finds."""
        after = state.deep_copy()
        if after.consume_tokens(list(ending)) and after.is_accepting():
            yield ending
        yield self._search(state, FIT_VISITS, data)

    def _search(self, state: llguidance.LLMatcher, max_visits: int = MAX_VISITS, more: bytes = b"") -> bytes | None:
        """`state`: behind the answer so far and `more`."""
        started = self._clock()
        left = min(MAX_SEARCH_SECONDS, self._granted() / 2 - self._search_seconds)
        if left <= 0:
            return None
        found = shortest_completion(
            state,
            style=self.compiled.style,
            max_visits=max_visits,
            before=self._last_bytes() + more if self.compiled.steps else b"",
            steps=self.compiled.steps,
            out_of_time=lambda: self._clock() - started > left,
        )
        self._search_seconds += self._clock() - started
        return found

    def _granted(self) -> float:
        return SECONDS_AT_START + SECONDS_PER_TOKEN * len(self._tokens)

    def _last_bytes(self) -> bytes:
        return b"".join([self._vocabulary.bytes[token] for token in self._tokens[-_LONGEST_NUMBER:]])

    def _spelled(self, text: bytes | None) -> tuple[bytes, tuple[int, ...]] | None:
        spelled = None if text is None else self._vocabulary.spell(text)
        return None if text is None or spelled is None else (text, spelled)

    # ---- states ----

    def _byte_state(self) -> llguidance.LLMatcher | None:
        if self._bytes is not None:
            new = [byte for token in self._tokens[self._num_in_bytes :] for byte in self._vocabulary.bytes[token]]
            self._num_in_bytes = len(self._tokens)
            if new and not self._bytes.consume_tokens(new):
                self._bytes = None
        return self._bytes

    def _digit_run(self) -> int:
        for token in self._tokens[self._num_in_digits :]:
            self._digits.push(self._vocabulary.bytes[token])
        self._num_in_digits = len(self._tokens)
        return self._digits.length

    def _ends(self, token: int) -> bool:
        return token in self._vocabulary.eos_token_ids and not self._matcher.is_error()

    def _go_back(self, length: int) -> None:
        compiled = self.compiled
        if self._matcher.is_stopped() or not self._matcher.rollback(len(self._tokens) - length):
            self._matcher = compiled.matcher.deep_copy()
            self._matcher.consume_tokens(self._tokens[:length])
        del self._tokens[length:]
        self._bytes = compiled.byte_matcher.deep_copy() if compiled.byte_matcher is not None else None
        self._digits = DigitRun()
        self._num_in_bytes = self._num_in_digits = 0
        self._kept = None


def _without(allowed: NDArray[np.bool_], banned: NDArray[np.bool_] | list[int]) -> NDArray[np.bool_]:
    """`allowed` less `banned`, unless nothing is left."""
    rest = allowed.copy()
    if isinstance(banned, list):
        rest[[token for token in banned if token < len(rest)]] = False
    else:
        rest[: len(banned)] &= ~banned[: len(rest)]
    return rest if rest.any() else allowed
