"""From a GGUF header's tensor index to placed tensors: every type known, every byte inside the file, none shared."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

from slipstream.errors import ModelFormatError
from slipstream.lean import dataclass
from slipstream.weights.checkpoint import TensorInfo
from slipstream.weights.formats.ggml_types import GGML_TYPES, describe_type
from slipstream.weights.formats.gguf_header import GgufHeader, IndexEntry
from slipstream.weights.naming import duplicates, name_list, show


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and the file bytes [start, start + info.nbytes) that hold it."""

    info: TensorInfo
    start: int


def place_tensors(header: GgufHeader, file_size: int, path: Path) -> list[Placed]:
    """The file's tensors in file order.

    Raises:
        ModelFormatError: listing every tensor that is wrong in the same way.
    """

    def refuse(what: str, names: list[str], fix: str | None = None) -> None:
        if names:
            raise ModelFormatError(f"{what} ({len(names)}): {name_list(names)}.", where=str(path), fix=fix)

    entries = header.entries
    refuse("the same tensor name appears more than once", duplicates([e.name for e in entries]))
    refuse(
        "tensors of a type that is not supported",
        [f"{show(e.name)} is {describe_type(e.type_number)}" for e in entries if e.type_number not in GGML_TYPES],
        "Supported are " + ", ".join(t.name for t in GGML_TYPES.values()) + ".",
    )
    refuse("tensors with a dimension of zero", [e.name for e in entries if 0 in e.dims])
    refuse(
        "tensors whose rows are not whole blocks",
        [
            f"{show(e.name)} (rows of {e.dims[0]}, {describe_type(e.type_number)} blocks of "
            f"{GGML_TYPES[e.type_number].block_size})"
            for e in entries
            if e.dims[0] % GGML_TYPES[e.type_number].block_size
        ],
    )
    refuse(
        f"tensors that are not aligned to {header.alignment} bytes",
        [e.name for e in entries if e.offset % header.alignment],
    )
    placed = sorted((_place(e, header.data_start) for e in entries), key=lambda p: p.start)
    refuse(
        f"is truncated or damaged: tensors reach past the end of the file at byte {file_size}",
        [p.info.name for p in placed if p.start + p.info.nbytes > file_size],
        "Fetch it again.",
    )
    refuse(
        "tensors overlap",
        [
            f"{show(a.info.name)} with {show(b.info.name)}"
            for a, b in pairwise(placed)
            if a.start + a.info.nbytes > b.start
        ],
    )
    return placed


def _place(entry: IndexEntry, data_start: int) -> Placed:
    kind = GGML_TYPES[entry.type_number]
    nbytes = kind.num_bytes(math.prod(entry.dims))
    return Placed(TensorInfo(entry.name, entry.dims[::-1], kind.name, nbytes), data_start + entry.offset)
