"""Grammars that cannot be used: why, in the words of whoever asks, and a memory of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from slipstream.errors import InvalidParamsError
from slipstream.lean import dataclass
from slipstream.sampling.grammar.reasons import plain_reason
from slipstream.sampling.grammar.spec import GrammarSpec

MAX_REMEMBERED = 1024  # refusals; each takes half a kilobyte
MEASURED_HOLDS = 300.0  # seconds that a refusal for the time or memory that reading took is taken for true


@dataclass(frozen=True, slots=True)
class Refusal:
    """`line`: of the source, counted from 1, if the reason is in one. `measured`: it took too much time or memory,
    which depends on the machine's load, too."""

    line: int | None
    reason: str
    measured: bool = False

    def error(self, spec: GrammarSpec) -> InvalidParamsError:
        """By the names that whoever asked knows the grammar by."""
        line, reason = self.line, self.reason
        where = spec.name_of(line)
        if line is not None and line <= spec.source.count("\n") + 1 and spec.kind == "grammar" and len(spec.fields) < 2:
            reason = f"line {line}: {reason}"
        return InvalidParamsError(f"cannot be used: {reason}", where=where)


class GrammarRefused(Exception):  # noqa: N818  a finding, which the compiler turns into an InvalidParamsError
    """`why`: llguidance's message or our own reason; "" where nothing is allowed."""

    def __init__(self, why: str, *, measured: bool = False) -> None:
        line, reason = plain_reason(why)
        self.refusal = Refusal(line, reason, measured)
        super().__init__(reason)


class Refusals:
    """The last `capacity` refusals, by a digest of the grammar, so that one that comes again and again is read once.

    `now`: a clock, in seconds. For one thread at a time.
    """

    def __init__(self, now: Callable[[], float], *, capacity: int = MAX_REMEMBERED) -> None:
        self._now = now
        self._capacity = capacity
        self._kept: OrderedDict[bytes, tuple[Refusal, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, spec: GrammarSpec, refusal: Refusal) -> None:
        digest = _digest(spec)
        self._kept[digest] = refusal, self._now()
        self._kept.move_to_end(digest)
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def find(self, spec: GrammarSpec) -> Refusal | None:
        """None if it was not refused, or so long ago that it is worth another try."""
        digest = _digest(spec)
        if digest not in self._kept:
            return None
        refusal, since = self._kept[digest]
        if refusal.measured and self._now() >= since + MEASURED_HOLDS:
            del self._kept[digest]
            return None
        self._kept.move_to_end(digest)
        return refusal


def _digest(spec: GrammarSpec) -> bytes:
    """Of what decides whether it can be used."""
    text = f"{spec.kind} {spec.bounded} {spec.source}"
    return blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
