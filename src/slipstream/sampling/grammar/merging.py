"""What the parts of a JSON schema ask for together.

`allOf`, `anyOf`, `oneOf` and `$ref` are merged into one list of alternatives before they are followed, so what a place
costs shows in none of its parts alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any, NamedTuple

from slipstream.lean import dataclass
from slipstream.sampling.grammar.schema_parts import References, parts

MAX_ALTERNATIVES = 1024

_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
_MOST = 2**32  # llguidance multiplies steps in 32 bits, and does not see that they overflow


class TooManyAlternatives(Exception):  # noqa: N818  a finding
    """More than MAX_ALTERNATIVES at one place."""


class StepTooLarge(Exception):  # noqa: N818  a finding
    """Steps that come together and have no common multiple that llguidance could count with."""


@dataclass(frozen=True, slots=True)
class Step:
    """What `multipleOf` says: count / 10 ** digits, in lowest terms of ten."""

    count: int
    digits: int

    @property
    def states(self) -> int:
        """Of an automaton that finds its multiples, about."""
        return self.count * (self.digits + 1)


class Alternative(NamedTuple):
    """`named`, `required`: sets of properties, as the bits of a number. `step`: None if any number will do. `led`: a
    property that must be there comes first, and tells it from others before its optional ones are open."""

    named: int = 0
    required: int = 0
    step: Step | None = None
    led: bool = False

    @property
    def num_optional(self) -> int:
        return (self.named & ~self.required).bit_count()


_ANYTHING = (Alternative(),)


class Merger:
    """Merges the parts of one schema; what `$ref` leads to is merged once. Raises RecursionError where they are nested
    too deeply, TooManyAlternatives and StepTooLarge."""

    def __init__(self, schema: Any) -> None:
        self._references = References(schema)
        self._bits: dict[str, int] = {}
        self._merged: dict[int, tuple[Alternative, ...]] = {}  # by the identity of the part
        self._under_way: set[int] = set()

    def alternatives(self, part: Any) -> tuple[Alternative, ...]:
        """What an answer at this place may be; those without properties and steps count once, together."""
        if not isinstance(part, dict):
            return _ANYTHING
        known = self._merged.get(id(part))
        if known is not None:
            return known
        if id(part) in self._under_way:  # it refers to itself in its own place, which llguidance refuses
            return _ANYTHING
        self._under_way.add(id(part))
        merged: tuple[Alternative, ...] = (self._own(part),)
        for others in self._beside(part):
            merged = _product(merged, others)
        self._under_way.discard(id(part))
        self._merged[id(part)] = merged
        return merged

    def _own(self, part: dict[str, Any]) -> Alternative:
        properties, required = part.get("properties"), part.get("required")
        names = self._set(properties if isinstance(properties, dict) else ())
        needed = self._set(required if isinstance(required, list) else ())
        first = self._set(list(properties)[:1] if isinstance(properties, dict) else ())
        return Alternative(names, needed, step_of(part.get("multipleOf")), led=bool(first & needed))

    def _set(self, names: Iterable[Any]) -> int:
        bits = 0
        for name in names:
            if isinstance(name, str):
                bits |= 1 << self._bits.setdefault(name, len(self._bits))
        return bits

    def _beside(self, part: dict[str, Any]) -> Iterable[tuple[Alternative, ...]]:
        for key in _IN_PLACE:
            value = part.get(key)
            if key == "$ref" and value is not None:
                yield self.alternatives(self._references.find(value))
            elif isinstance(value, list) and key == "allOf":
                yield from map(self.alternatives, value)
            elif isinstance(value, list):
                yield _limited(each for option in value for each in self.alternatives(option))


def steps_in(schema: Any) -> tuple[Step, ...]:
    """All that numbers have to be multiples of somewhere; not those that every whole number is. Raises as Merger
    does."""
    merger = Merger(schema)
    found = (each.step for _, part in parts(schema) for each in merger.alternatives(part))
    return tuple(dict.fromkeys(step for step in found if step is not None and step != Step(1, 0)))


def step_of(value: Any) -> Step | None:
    """As llguidance reads `multipleOf`; None where there is none, or none that it takes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        left = abs(float(value))
    except OverflowError:
        return None
    digits = 0
    while left < _MOST and not left.is_integer():
        left, digits = left * 10, digits + 1
    if not left < _MOST:
        return None
    count = int(left)
    while digits and count % 10 == 0:
        count, digits = count // 10, digits - 1
    return Step(count, digits if count else 0)


def _common(one: Step | None, other: Step | None) -> Step | None:
    if one is None or other is None:
        return one or other
    if not one.count or not other.count:
        return Step(0, 0)
    digits = max(one.digits, other.digits)
    a, b = one.count * 10 ** (digits - one.digits), other.count * 10 ** (digits - other.digits)
    if a * b >= _MOST:
        raise StepTooLarge
    count = a * b // gcd(a, b)
    while digits and count % 10 == 0:
        count, digits = count // 10, digits - 1
    return Step(count, digits)


def _product(some: tuple[Alternative, ...], others: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
    return _limited(
        Alternative(a.named | b.named, a.required | b.required, _common(a.step, b.step), a.led or b.led)
        for a in some
        for b in others
    )


def _limited(alternatives: Iterable[Alternative]) -> tuple[Alternative, ...]:
    """Those that differ, as texts of an enumeration do not: there may be thousands of them."""
    found: list[Alternative] = []
    plain: set[Alternative] = set()
    for each in alternatives:
        if each.named or each.step is not None:
            found.append(each)
        else:
            plain.add(each)
        if len(found) + len(plain) > MAX_ALTERNATIVES:
            raise TooManyAlternatives
    return (*found, *plain) or _ANYTHING
