"""Frozen for the type checker, cheap to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as lean_dataclass
else:
    from dataclasses import dataclass

    def lean_dataclass(*, frozen: bool, slots: bool):
        """`@lean_dataclass(frozen=True, slots=True)`, for what every step makes several of.

        A dataclass that is frozen at run time sets each field by a call of `object.__setattr__`, three times as slow as
        an assignment. This one is frozen for mypy only; equality, hash and the rest are the same.
        """
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["lean_dataclass"]
