"""A backend whose tensors are only names: whoever looks inside one fails."""

from __future__ import annotations

from typing import Any

from slipstream.kernels.table import Kernels


class Opaque:
    """Supports nothing, not even truth or equality."""

    __slots__ = ("name",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        raise AssertionError(f"{self.name} was compared")

    def __bool__(self) -> bool:
        raise AssertionError(f"the truth of {self.name} was asked")


def recording_kernels() -> tuple[Kernels, list[str]]:
    """Kernels that return `Opaque` results, and the list of the ops called so far."""
    calls: list[str] = []

    def op(name: str) -> Any:
        def call(*_: Any) -> Opaque:
            calls.append(name)
            return Opaque(f"{name}#{len(calls)}")

        return call

    fields = [name for name in Kernels.__dataclass_fields__ if name != "name"]
    return Kernels(name="recording", **{name: op(name) for name in fields}), calls
