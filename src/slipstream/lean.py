"""Dataclasses that are cheap to define and to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """`dataclasses.dataclass`, except that `frozen` holds for the type checker only.

        What is frozen at run time sets each field by a call of `object.__setattr__`, thrice as slow as an assignment,
        and every step makes such objects. And the methods that the standard one compiles for each class anew are the
        same functions for all here: defining a class takes a fifth of the time, and a start defines more than a
        hundred. Where a user could change what must not change, as in settings, the standard one is the right one.
        """

        def define(cls):
            own = cls.__dict__
            if cls.__doc__ is None:
                cls.__doc__ = f"{cls.__name__}({', '.join(own.get('__annotations__', ()))})"
            shared = {"__repr__": _repr}
            if eq:
                shared |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            shared = {name: method for name, method in shared.items() if name not in own}
            made = dataclasses.dataclass(cls, repr=False, eq=False, **options)
            for name, method in shared.items():
                setattr(made, name, method)
            return made

        return define if cls is None else define(cls)

    def _values(record):
        return tuple(getattr(record, each.name) for each in dataclasses.fields(record) if each.compare)

    def _eq(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_values(self))

    def _repr(self):
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"


__all__ = ["dataclass"]
