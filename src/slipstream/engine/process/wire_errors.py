"""Errors across the process boundary: class, message, place and advice survive; anything else becomes EngineError."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slipstream.errors import EngineError, SlipstreamError

Plain = str | int | float | bool | None

_FIELDS = ("what", "where", "fix")


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """`kinds`: the class and its bases up to SlipstreamError; the receiver takes the first that it knows."""

    kinds: tuple[str, ...]
    message: str
    what: str
    where: str | None
    fix: str | None
    extra: dict[str, Plain]  # further attributes, `retry_after` for instance


def to_wire(error: BaseException) -> WireError:
    if not isinstance(error, SlipstreamError):
        error = EngineError(f"{type(error).__name__}: {error}")
    bases = type(error).__mro__
    kinds = tuple(kind.__name__ for kind in bases[: bases.index(SlipstreamError) + 1])
    extra = {
        name: value
        for name, value in vars(error).items()
        if name not in _FIELDS and isinstance(value, str | int | float | bool | None)
    }
    return WireError(kinds, str(error), error.what, error.where, error.fix, extra)


def from_wire(wire: WireError) -> SlipstreamError:
    known = {kind.__name__: kind for kind in _all(SlipstreamError)}
    kind = next((known[name] for name in wire.kinds if name in known), EngineError)
    error = kind.__new__(kind)  # the classes' own constructors put the message together, which has been done
    error.args = (wire.message,)
    error.what, error.where, error.fix = wire.what, wire.where, wire.fix
    for name, value in wire.extra.items():
        setattr(error, name, value)
    return error


def _all(kind: type[SlipstreamError]) -> Iterator[type[SlipstreamError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all(each)
