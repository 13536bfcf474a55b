"""How a long transfer tells its caller where it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def begin(self, label: str, num_bytes: int) -> None:
        """A new stage of `num_bytes` starts; the one before it is over."""

    def reach(self, num_bytes: int) -> None:
        """The stage has come to `num_bytes` in all."""

    def note(self, text: str) -> None:
        """One sentence for the user."""


class NoProgress:
    """Says nothing."""

    def begin(self, label: str, num_bytes: int) -> None:
        pass

    def reach(self, num_bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
