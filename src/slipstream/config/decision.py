"""Asked is not effective: what was asked for, what is in force, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """`asked` is None where nothing was asked for."""

    field: str  # "max_num_seqs"
    asked: str | int | float | bool | None
    effective: str | int | float | bool | None
    why: str

    @property
    def overruled(self) -> bool:
        """Something was asked for and something else is in force."""
        return self.asked is not None and self.asked != self.effective

    def __str__(self) -> str:
        asked = f" (asked: {self.asked})" if self.overruled else ""
        return f"{self.field} = {self.effective}{asked}: {self.why}"
