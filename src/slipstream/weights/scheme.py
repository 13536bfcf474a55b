"""What a weight's numbers are: the part of a format that layers, memory plans and reports need to know."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Granularity = Literal["none", "tensor", "channel", "group"]


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How values are represented.

    Attributes:
        bits: of one stored value, scales not counted.
        kind: "float" (IEEE), "bfloat" (8 exponent bits in 16) or "int".
        granularity: what shares one scale; "none" for values that have none.
        group_size: values per scale, if and only if granularity is "group".
        symmetric: whether there is no zero point or minimum beside the scale.
        activation: what the other factor is converted to before multiplying; None: it is left in floating point.
    """

    bits: int
    kind: Literal["float", "bfloat", "int"]
    granularity: Granularity = "none"
    group_size: int | None = None
    symmetric: bool = True
    activation: Literal["int8"] | None = None

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"bits is {self.bits}; it must be at least 1")
        if (self.granularity == "group") != (self.group_size is not None):
            raise ValueError(f"granularity is {self.granularity!r}, but group_size is {self.group_size}")
        if self.group_size is not None and self.group_size < 1:
            raise ValueError(f"group_size is {self.group_size}; it must be at least 1")
        if (self.kind == "int") == (self.granularity == "none"):
            raise ValueError(f"kind {self.kind!r} does not go with granularity {self.granularity!r}")

    def __str__(self) -> str:
        name = {"float": "fp", "bfloat": "bf", "int": "int"}[self.kind] + str(self.bits)
        if self.granularity == "none":
            return name
        group = f" of {self.group_size}" if self.group_size is not None else ""
        return f"{name} per {self.granularity}{group}, {'symmetric' if self.symmetric else 'asymmetric'}"


def _grouped(bits: int, group_size: int, *, symmetric: bool) -> QuantScheme:
    return QuantScheme(bits, "int", "group", group_size, symmetric)


_GGUF_SCHEMES = MappingProxyType(
    {
        "F32": QuantScheme(32, "float"),
        "F16": QuantScheme(16, "float"),
        "BF16": QuantScheme(16, "bfloat"),
        "Q4_0": _grouped(4, 32, symmetric=True),
        "Q4_1": _grouped(4, 32, symmetric=False),
        "Q5_0": _grouped(5, 32, symmetric=True),
        "Q5_1": _grouped(5, 32, symmetric=False),
        "Q8_0": _grouped(8, 32, symmetric=True),
        "Q2_K": _grouped(2, 16, symmetric=False),
        "Q3_K": _grouped(3, 16, symmetric=True),
        "Q4_K": _grouped(4, 32, symmetric=False),
        "Q5_K": _grouped(5, 32, symmetric=False),
        "Q6_K": _grouped(6, 16, symmetric=True),
    }
)


def scheme_of(dtype: str) -> QuantScheme:
    """The scheme of a `TensorInfo.dtype`; KeyError for a name that is not one."""
    return _GGUF_SCHEMES[dtype]
