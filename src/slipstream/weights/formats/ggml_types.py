"""The tensor types that a GGUF file can name: how many elements make a block and how many bytes it takes.

Numbers and sizes follow the GGUF specification and ggml's type enumeration.
"""

from __future__ import annotations

from types import MappingProxyType

from slipstream.lean import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    """`block_size` elements are stored together in `type_size` bytes."""

    name: str
    block_size: int
    type_size: int

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements`, a multiple of the block size."""
        return num_elements // self.block_size * self.type_size


GGML_TYPES = MappingProxyType(
    {
        0: GgmlType("F32", 1, 4),
        1: GgmlType("F16", 1, 2),
        2: GgmlType("Q4_0", 32, 18),
        3: GgmlType("Q4_1", 32, 20),
        6: GgmlType("Q5_0", 32, 22),
        7: GgmlType("Q5_1", 32, 24),
        8: GgmlType("Q8_0", 32, 34),
        10: GgmlType("Q2_K", 256, 84),
        11: GgmlType("Q3_K", 256, 110),
        12: GgmlType("Q4_K", 256, 144),
        13: GgmlType("Q5_K", 256, 176),
        14: GgmlType("Q6_K", 256, 210),
        30: GgmlType("BF16", 1, 2),
    }
)

GGML_TYPE_BY_NAME = MappingProxyType({t.name: t for t in GGML_TYPES.values()})

_KNOWN_ELSEWHERE = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
    }
)


def describe_type(number: int) -> str:
    """A name for messages: "Q4_0", "IQ2_XXS (type 16)" or "type 77"."""
    if number in GGML_TYPES:
        return GGML_TYPES[number].name
    name = _KNOWN_ELSEWHERE.get(number)
    return f"{name} (type {number})" if name else f"type {number}"
